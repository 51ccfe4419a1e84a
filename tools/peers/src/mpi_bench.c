// mpi_bench times one MPI collective, or a ping-pong, over a sweep of sizes, and
// prints a line per size:
//
//   mpirun -np N mpi_bench OP MIN MAX SECONDS
//   <op> np=<n> bytes=<b> median_us=<t> min_us=<t> n=<iterations>
//
// OP is allreduce, broadcast, allgather, reduce_scatter, alltoall, pingpong or
// barrier; MIN and MAX are bytes of the whole vector, and each size is 4 times the
// one before; SECONDS is what the iterations of one size add up to.
//
// It measures as tuttibench does: each iteration starts with a barrier, the
// slowest rank's time counts, three iterations do not count, and the median of the
// rest is printed, at least 5 and at most 20,000. A figure from a wrong result is
// never printed: every element of every rank's output is compared after each size.
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UPS = 3, LEAST = 5, MOST = 20000, TAG = 7 };

typedef struct {
    const char *op;
    int ranks, me;
    size_t whole; // elements of the whole vector
    size_t chunk; // of one rank's part of it, where it has parts
    float *in, *out;
} trial;

static int is(const trial *t, const char *op) { return !strcmp(t->op, op); }

static int chunked(const trial *t) { return is(t, "allgather") || is(t, "reduce_scatter") || is(t, "alltoall"); }

// What rank sends at index i. Sums of these are exact.
static float share(int rank, size_t i) { return (float)(1 + (i * 7 + (size_t)rank * 5) % 11); }

static float sum(int ranks, size_t i) {
    float s = 0;
    for (int r = 0; r < ranks; r++) s += share(r, i);
    return s;
}

static void load(trial *t) {
    for (size_t i = 0; i < t->whole; i++) t->in[i] = share(t->me, i), t->out[i] = 0;
}

static void run(trial *t) {
    float *in = t->in, *out = t->out;
    int whole = (int)t->whole, chunk = (int)t->chunk;
    MPI_Comm world = MPI_COMM_WORLD;
    if (is(t, "allreduce")) MPI_Allreduce(in, out, whole, MPI_FLOAT, MPI_SUM, world);
    else if (is(t, "broadcast")) MPI_Bcast(t->me ? out : in, whole, MPI_FLOAT, 0, world);
    else if (is(t, "allgather")) MPI_Allgather(in, chunk, MPI_FLOAT, out, chunk, MPI_FLOAT, world);
    else if (is(t, "reduce_scatter")) MPI_Reduce_scatter_block(in, out, chunk, MPI_FLOAT, MPI_SUM, world);
    else if (is(t, "alltoall")) MPI_Alltoall(in, chunk, MPI_FLOAT, out, chunk, MPI_FLOAT, world);
    else if (is(t, "barrier")) MPI_Barrier(world);
    else if (t->me == 0) {
        MPI_Send(in, whole, MPI_FLOAT, 1, TAG, world);
        MPI_Recv(out, whole, MPI_FLOAT, 1, TAG, world, MPI_STATUS_IGNORE);
    } else if (t->me == 1) {
        MPI_Recv(out, whole, MPI_FLOAT, 0, TAG, world, MPI_STATUS_IGNORE);
        MPI_Send(in, whole, MPI_FLOAT, 0, TAG, world);
    }
}

// What this rank's output must hold at index i.
static float want(const trial *t, size_t i) {
    size_t part = i / t->chunk, within = i % t->chunk;
    if (is(t, "allreduce")) return sum(t->ranks, i);
    if (is(t, "broadcast")) return share(0, i);
    if (is(t, "allgather")) return share((int)part, within);
    if (is(t, "reduce_scatter")) return sum(t->ranks, (size_t)t->me * t->chunk + i);
    if (is(t, "alltoall")) return share((int)part, (size_t)t->me * t->chunk + within);
    return share(1 - t->me, i); // pingpong
}

static void verify(const trial *t) {
    size_t held = is(t, "reduce_scatter") ? t->chunk : t->whole;
    if (is(t, "barrier") || (is(t, "broadcast") && t->me == 0) || (is(t, "pingpong") && t->me > 1)) return;
    for (size_t i = 0; i < held; i++) {
        if (t->out[i] == want(t, i)) continue;
        fprintf(stderr, "%s: wrong result at %zu of %zu on rank %d\n", t->op, i, held, t->me);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The slowest ranks' seconds of each iteration; returns how many.
static int measure(trial *t, double budget, double *seconds) {
    double spent = 0;
    int done = 0;
    for (int i = -WARM_UPS; done < MOST; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        run(t);
        double mine = MPI_Wtime() - begin, slowest;
        MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (i < 0) continue;
        seconds[done++] = slowest;
        spent += slowest; // the same on every rank
        if (spent > budget && done >= LEAST) break;
    }
    return done;
}

static void sweep_one(trial *t, size_t bytes, double budget) {
    size_t n = (size_t)t->ranks;
    t->whole = bytes / sizeof(float) ? bytes / sizeof(float) : 1;
    t->chunk = t->whole;
    if (chunked(t)) {
        t->chunk = t->whole / n ? t->whole / n : 1;
        t->whole = t->chunk * n;
    }
    t->in = malloc(t->whole * sizeof(float));
    t->out = malloc(t->whole * sizeof(float));
    double *seconds = malloc(MOST * sizeof(double));
    if (!t->in || !t->out || !seconds) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    load(t);
    int done = measure(t, budget, seconds);
    verify(t);
    MPI_Barrier(MPI_COMM_WORLD); // nothing is printed before all have verified
    if (t->me == 0) {
        qsort(seconds, (size_t)done, sizeof(double), ascending);
        printf("%s np=%d bytes=%zu median_us=%.3f min_us=%.3f n=%d\n", t->op, t->ranks, t->whole * sizeof(float),
               seconds[done / 2] * 1e6, seconds[0] * 1e6, done);
        fflush(stdout);
    }
    free(t->in);
    free(t->out);
    free(seconds);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    trial t = {.op = argc > 1 ? argv[1] : "allreduce"};
    MPI_Comm_size(MPI_COMM_WORLD, &t.ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &t.me);
    size_t least = argc > 2 ? strtoull(argv[2], 0, 0) : 4, most = argc > 3 ? strtoull(argv[3], 0, 0) : 64u << 20;
    double budget = argc > 4 ? atof(argv[4]) : 0.2;
    if (!least || (is(&t, "pingpong") && t.ranks < 2)) MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t bytes = least; bytes <= most; bytes *= 4) {
        sweep_one(&t, bytes, budget);
        if (is(&t, "barrier")) break;
    }
    MPI_Finalize();
    return 0;
}
