// gloo_bench times Gloo's allreduce or broadcast over TCP on loopback, over a sweep
// of sizes, one process per rank; rank 0 prints a line per size:
//
//   gloo_bench RANK RANKS STORE KIND MIN MAX SECONDS
//   gloo-<kind> np=<n> bytes=<b> median_us=<t> min_us=<t> n=<iterations>
//
// STORE is an empty folder in which the ranks find each other. KIND is ring, bcube,
// halving or chunked (algorithms of an allreduce), or broadcast. The rest, and how
// it is measured and verified, is as in mpi_bench.c. Gloo works in place, so the
// vector is filled anew before each iteration, outside of the time.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr int kWarmUps = 3;
constexpr size_t kLeast = 5, kMost = 20000;
constexpr size_t kBlock = 11 * 93;  // of elements; Share repeats itself after 11

using Context = std::shared_ptr<gloo::rendezvous::Context>;

// What a rank sends at index i. Sums of these are exact.
float Share(int rank, size_t i) { return float(1 + (i * 7 + size_t(rank) * 5) % 11); }

float Want(const std::string& kind, int ranks, size_t i) {
  if (kind == "broadcast") return Share(0, i);
  float sum = 0;
  for (int r = 0; r < ranks; r++) sum += Share(r, i);
  return sum;
}

// An operation on one vector, in place.
class Trial {
 public:
  Trial(Context ctx, std::string kind, size_t count) : ctx_(ctx), kind_(kind), buf_(count), block_(kBlock) {
    for (size_t i = 0; i < kBlock; i++) block_[i] = Share(ctx->rank, i);
    std::vector<float*> ptrs{buf_.data()};
    if (kind == "halving") algorithm_.reset(new gloo::AllreduceHalvingDoubling<float>(ctx, ptrs, int(count)));
    if (kind == "chunked") algorithm_.reset(new gloo::AllreduceRingChunked<float>(ctx, ptrs, int(count)));
  }

  // From a small block, so that nothing but the vector is left in the caches.
  void Load() {
    for (size_t at = 0; at < buf_.size(); at += kBlock)
      std::copy_n(block_.begin(), std::min(kBlock, buf_.size() - at), buf_.begin() + at);
  }

  void Run() {
    if (algorithm_) {
      algorithm_->run();
    } else if (kind_ == "broadcast") {
      gloo::BroadcastOptions o(ctx_);
      o.setOutput(buf_.data(), buf_.size());
      o.setRoot(0);
      gloo::broadcast(o);
    } else {
      gloo::AllreduceOptions o(ctx_);
      o.setOutput(buf_.data(), buf_.size());
      o.setAlgorithm(kind_ == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
                                      : gloo::AllreduceOptions::Algorithm::RING);
      o.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      gloo::allreduce(o);
    }
  }

  bool Right() const {
    for (size_t i = 0; i < buf_.size(); i++) {
      if (buf_[i] == Want(kind_, ctx_->size, i)) continue;
      fprintf(stderr, "%s: wrong result at %zu of %zu on rank %d\n", kind_.c_str(), i, buf_.size(), ctx_->rank);
      return false;
    }
    return true;
  }

 private:
  Context ctx_;
  std::string kind_;
  std::vector<float> buf_, block_;
  std::unique_ptr<gloo::Algorithm> algorithm_;
};

double Slowest(const Context& ctx, double mine) {
  std::vector<double> v{mine};
  gloo::AllreduceOptions o(ctx);
  o.setOutput(v.data(), v.size());
  o.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::max<double>));
  gloo::allreduce(o);
  return v[0];
}

// The slowest ranks' seconds of each iteration, ascending.
std::vector<double> Measure(const Context& ctx, Trial& trial, double budget) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  double spent = 0;
  for (int i = -kWarmUps; seconds.size() < kMost; i++) {
    trial.Load();
    gloo::BarrierOptions barrier(ctx);
    gloo::barrier(barrier);
    auto begin = Clock::now();
    trial.Run();
    double slowest = Slowest(ctx, std::chrono::duration<double>(Clock::now() - begin).count());
    if (i < 0) continue;
    seconds.push_back(slowest);
    spent += slowest;  // the same on every rank
    if (spent > budget && seconds.size() >= kLeast) break;
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

Context Join(int rank, int ranks, const std::string& store_dir) {
  gloo::rendezvous::FileStore store(store_dir);
  gloo::transport::tcp::attr attr;
  attr.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(attr);
  auto ctx = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  ctx->connectFullMesh(store, device);
  return ctx;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 8) {
    fprintf(stderr, "usage: gloo_bench RANK RANKS STORE KIND MIN MAX SECONDS\n");
    return 1;
  }
  std::string kind = argv[4];
  size_t least = strtoull(argv[5], 0, 0), most = strtoull(argv[6], 0, 0);
  double budget = atof(argv[7]);
  if (least == 0) return 1;
  Context ctx = Join(atoi(argv[1]), atoi(argv[2]), argv[3]);
  for (size_t bytes = least; bytes <= most; bytes *= 4) {
    size_t count = std::max<size_t>(1, bytes / sizeof(float));
    Trial trial(ctx, kind, count);
    auto seconds = Measure(ctx, trial, budget);
    // Nothing is printed before all have verified.
    if (Slowest(ctx, trial.Right() ? 0 : 1) > 0) return 2;
    if (ctx->rank == 0) {
      printf("gloo-%s np=%d bytes=%zu median_us=%.3f min_us=%.3f n=%zu\n", kind.c_str(), ctx->size,
             count * sizeof(float), seconds[seconds.size() / 2] * 1e6, seconds[0] * 1e6, seconds.size());
      fflush(stdout);
    }
  }
  return 0;
}
