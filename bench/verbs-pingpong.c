/* verbs-pingpong.c: messages of some bytes between two processes on one RDMA device,
 * with nothing between the program and libibverbs: what package transport/verbs is
 * measured beside.
 *
 *   cc -O2 -o verbs-pingpong bench/verbs-pingpong.c -libverbs
 *   ./verbs-pingpong DEVICE GID-INDEX [BYTES [ROUNDS [events]]]
 *
 * Both ends poll; with "events" they sleep until the completion channel has one. It
 * prints half of a round's time: the least, the median, and the 90th percentile.
 */
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RECEIVES = 16, WARM = 200, INLINE = 64 };

struct address { union ibv_gid gid; uint32_t qpn, psn; };

static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char *memory;
static int bytes = 8, rounds = 2000, events;

static void must(int ok, const char *what) {
	if (!ok) { perror(what); exit(1); }
}

static void receive(int slot) {
	struct ibv_sge at = { (uintptr_t)(memory + (1 + slot) * bytes), bytes, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &at, .num_sge = 1 }, *bad;
	must(!ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
}

static void send_one(void) {
	struct ibv_sge at = { (uintptr_t)memory, bytes, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1 << 20, .sg_list = &at, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | (bytes <= INLINE ? IBV_SEND_INLINE : 0) }, *bad;
	must(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
}

/* await returns when a message has come and the one before has left. */
static void await(int *sent, int *came) {
	struct ibv_wc wc[4];
	while (!*sent || !*came) {
		int n = ibv_poll_cq(cq, 4, wc);
		must(n >= 0, "ibv_poll_cq");
		if (n == 0 && events) {
			struct ibv_cq *which; void *context;
			must(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
			if ((n = ibv_poll_cq(cq, 4, wc)) == 0) {
				must(!ibv_get_cq_event(channel, &which, &context), "ibv_get_cq_event");
				ibv_ack_cq_events(which, 1);
			}
		}
		for (int i = 0; i < n; i++) {
			if (wc[i].status != IBV_WC_SUCCESS) { fprintf(stderr, "%s\n", ibv_wc_status_str(wc[i].status)); exit(1); }
			if (wc[i].opcode == IBV_WC_RECV) { receive(wc[i].wr_id); (*came)++; } else (*sent)++;
		}
	}
	(*sent)--; (*came)--;
}

static void open_pair(const char *name, int gid, int peer) {
	struct ibv_device **list = ibv_get_device_list(NULL), *device = NULL;
	for (int i = 0; list && list[i]; i++) if (!strcmp(ibv_get_device_name(list[i]), name)) device = list[i];
	must(device != NULL, name);
	struct ibv_context *context = ibv_open_device(device);
	must(context != NULL, "ibv_open_device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	must(pd && (channel = ibv_create_comp_channel(context)) && (cq = ibv_create_cq(context, 4 * RECEIVES, NULL, channel, 0)), "ibv_create_cq");
	must((memory = calloc(1 + RECEIVES, bytes)) && (mr = ibv_reg_mr(pd, memory, (1 + RECEIVES) * bytes, IBV_ACCESS_LOCAL_WRITE)), "ibv_reg_mr");
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = RECEIVES, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = INLINE } };
	must((qp = ibv_create_qp(pd, &init)) != NULL, "ibv_create_qp");
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = 0 };
	must(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	for (int i = 0; i < RECEIVES; i++) receive(i);

	struct address own = { .qpn = qp->qp_num, .psn = getpid() & 0xffffff }, its;
	struct ibv_port_attr port;
	must(!ibv_query_gid(context, 1, gid, &own.gid) && !ibv_query_port(context, 1, &port), "ibv_query_gid");
	must(write(peer, &own, sizeof own) == sizeof own && read(peer, &its, sizeof its) == sizeof its, "exchange");
	struct ibv_qp_attr r = { .qp_state = IBV_QPS_RTR, .path_mtu = port.active_mtu, .dest_qp_num = its.qpn, .rq_psn = its.psn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = { .is_global = 1, .port_num = 1,
		.grh = { .dgid = its.gid, .sgid_index = gid, .hop_limit = 64 } } };
	must(!ibv_modify_qp(qp, &r, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	struct ibv_qp_attr s = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 6, .rnr_retry = 6, .sq_psn = own.psn, .max_rd_atomic = 1 };
	must(!ibv_modify_qp(qp, &s, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
	must(write(peer, "", 1) == 1 && read(peer, &its, 1) == 1, "ready");
}

static int ascending(const void *a, const void *b) { return *(double *)a < *(double *)b ? -1 : *(double *)a > *(double *)b; }

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
	if (argc < 3) { fprintf(stderr, "usage: %s DEVICE GID-INDEX [BYTES [ROUNDS [events]]]\n", argv[0]); return 2; }
	if (argc > 3) bytes = atoi(argv[3]);
	if (argc > 4) rounds = atoi(argv[4]);
	events = argc > 5;
	int ends[2], sent = 1, came = 0, status = 1;
	must(bytes > 0 && rounds > 0 && !socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
	pid_t parent = getpid(), child = fork();
	must(child >= 0, "fork");
	if (child == 0) { /* it ends with its parent, whatever ends that */
		must(!prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
		if (getppid() != parent) return 1;
	}
	open_pair(argv[1], atoi(argv[2]), ends[child != 0]);
	if (child == 0) {
		for (int i = 0; i < WARM + rounds; i++) { await(&sent, &came); send_one(); }
		came = 1;
		await(&sent, &came);
		return 0;
	}
	double *half = calloc(rounds, sizeof *half);
	sent = 0;
	for (int i = -WARM; i < rounds; i++) {
		double begin = now();
		send_one();
		await(&sent, &came);
		if (i >= 0) half[i] = (now() - begin) / 2;
	}
	qsort(half, rounds, sizeof *half, ascending);
	printf("%d bytes, %s: least %.1f us, median %.1f us, 90th percentile %.1f us\n", bytes, events ? "events" : "polling",
		half[0], half[rounds / 2], half[rounds * 9 / 10]);
	return waitpid(child, &status, 0) != child || status != 0;
}
