// Much of verbs.h is static inline or a macro, and its unions are opaque to cgo: what
// follows is that, as functions, and nothing else. They return an errno value.
#ifndef TUTTI_DEVICE_VERBS_H
#define TUTTI_DEVICE_VERBS_H

#include <errno.h>
#include <string.h>
#include <infiniband/verbs.h>

static int tutti_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a) {
	return ibv_query_port(c, port, a);
}
static int tutti_gid(struct ibv_context *c, uint8_t port, int i, uint8_t *gid, uint32_t *type) {
	struct ibv_gid_entry e;
	int rc = ibv_query_gid_ex(c, port, i, &e, 0);
	if (rc == 0) {
		memcpy(gid, e.gid.raw, 16);
		*type = e.gid_type;
	}
	return rc;
}
static struct ibv_mr *tutti_reg_mr(struct ibv_pd *pd, uintptr_t p, size_t n, int access) {
	return ibv_reg_mr(pd, (void *)p, n, access);
}
static int tutti_notify(struct ibv_cq *cq) { return ibv_req_notify_cq(cq, 0); }

static struct ibv_qp *tutti_create_qp(struct ibv_pd *pd, struct ibv_cq *cq, uintptr_t pair, uint32_t depth, uint32_t *inlined) {
	struct ibv_qp_init_attr a = { .qp_context = (void *)pair, .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = *inlined } };
	struct ibv_qp *qp = ibv_create_qp(pd, &a);
	*inlined = a.cap.max_inline_data;
	return qp;
}
static int tutti_init(struct ibv_qp *qp, uint8_t port, uint16_t pkey) {
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = port, .pkey_index = pkey,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

typedef struct {
	uint8_t gid[16];
	uint32_t qpn, their_psn, psn, gid_index;
	uint16_t lid;
	uint8_t port, mtu, traffic_class, service_level, timeout, retries, rnr_retries;
} tutti_path;

static int tutti_connect(struct ibv_qp *qp, const tutti_path *p) {
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = p->mtu, .dest_qp_num = p->qpn, .rq_psn = p->their_psn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = { .is_global = 1, .dlid = p->lid, .port_num = p->port,
		.sl = p->service_level,
		.grh = { .sgid_index = p->gid_index, .hop_limit = 64, .traffic_class = p->traffic_class } } };
	memcpy(a.ah_attr.grh.dgid.raw, p->gid, 16);
	int rc = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (rc) return rc;
	struct ibv_qp_attr s = { .qp_state = IBV_QPS_RTS, .sq_psn = p->psn, .timeout = p->timeout, .retry_cnt = p->retries,
		.rnr_retry = p->rnr_retries, .max_rd_atomic = 1 };
	return ibv_modify_qp(qp, &s, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}
static int tutti_recv(struct ibv_qp *qp, uint64_t id, uint64_t addr, uint32_t len, uint32_t lkey) {
	struct ibv_sge sge = { .addr = addr, .length = len, .lkey = lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	return ibv_post_recv(qp, &wr, &bad);
}

typedef struct {
	uint64_t id, addr, raddr;
	uint32_t len, lkey, rkey, imm, opcode, flags;
} tutti_work;

static int tutti_send(struct ibv_qp *qp, const tutti_work *w, int n) {
	struct ibv_send_wr wr[16], *bad;
	struct ibv_sge sge[16];
	memset(wr, 0, sizeof wr);
	for (int i = 0; i < n; i++) {
		sge[i] = (struct ibv_sge){ .addr = w[i].addr, .length = w[i].len, .lkey = w[i].lkey };
		wr[i].wr_id = w[i].id;
		wr[i].sg_list = &sge[i];
		wr[i].num_sge = w[i].len > 0;
		wr[i].opcode = w[i].opcode;
		wr[i].send_flags = w[i].flags;
		wr[i].imm_data = htobe32(w[i].imm);
		wr[i].wr.rdma.remote_addr = w[i].raddr;
		wr[i].wr.rdma.rkey = w[i].rkey;
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
	}
	return ibv_post_send(qp, wr, &bad);
}

typedef struct {
	uint64_t id;
	uint32_t status, vendor, bytes, imm, recv, write;
} tutti_done;

static int tutti_poll(struct ibv_cq *cq, tutti_done *d, int most, int looks) {
	struct ibv_wc wc[16];
	int n;
	do n = ibv_poll_cq(cq, most, wc); while (n == 0 && --looks > 0);
	for (int i = 0; i < n; i++)
		d[i] = (tutti_done){ .id = wc[i].wr_id, .status = wc[i].status, .vendor = wc[i].vendor_err,
			.bytes = wc[i].byte_len, .imm = be32toh(wc[i].imm_data), .recv = wc[i].opcode >> 7 & 1,
			.write = wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM };
	return n;
}
// The pair's number comes with the event, as the queue's context.
static int tutti_event(struct ibv_comp_channel *ch, uintptr_t *pair) {
	struct ibv_cq *cq;
	void *context;
	if (ibv_get_cq_event(ch, &cq, &context)) return errno;
	*pair = (uintptr_t)context;
	ibv_ack_cq_events(cq, 1);
	return 0;
}
// The same of an event that is of no work; pair is 0 where it is about no pair. What it is
// about is not destroyed before it is acknowledged.
static int tutti_async(struct ibv_context *c, uint32_t *type, uintptr_t *pair, uint32_t *port) {
	struct ibv_async_event e;
	if (ibv_get_async_event(c, &e)) return errno;
	*type = e.event_type;
	*pair = *port = 0;
	switch (e.event_type) {
	case IBV_EVENT_CQ_ERR:
		*pair = (uintptr_t)e.element.cq->cq_context;
		break;
	case IBV_EVENT_QP_FATAL: case IBV_EVENT_QP_REQ_ERR: case IBV_EVENT_QP_ACCESS_ERR:
		*pair = (uintptr_t)e.element.qp->qp_context;
		break;
	case IBV_EVENT_PORT_ACTIVE: case IBV_EVENT_PORT_ERR:
		*port = e.element.port_num;
		break;
	default:
		break;
	}
	ibv_ack_async_event(&e);
	return 0;
}
// Of the device's interrupt vectors, waiter number i uses vector i, round again.
static struct ibv_cq *tutti_create_cq(struct ibv_context *c, int n, uintptr_t pair, struct ibv_comp_channel *ch, int i) {
	return ibv_create_cq(c, n, (void *)pair, ch, c->num_comp_vectors > 0 ? i % c->num_comp_vectors : 0);
}

#endif
