/* A provider for the system's libibverbs (rdma-core 34 to 56) with a device that needs no
 * hardware: `stub0`, if sysfs has it. A request on one of its queue pairs completes at once with
 * opcode SEND and vendor error 77, and no data is sent. */
#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* Definitions that rdma-core's providers get from headers that are not installed. */
struct list_node {
	struct list_node *next, *prev;
};

struct verbs_sysfs_dev {
	struct list_node entry;
	void *provider_data;
	const void *match;
	unsigned int flags;
	char sysfs_name[IBV_SYSFS_NAME_MAX];
	dev_t sysfs_cdev;
	char ibdev_name[IBV_SYSFS_NAME_MAX];
	/* Further members follow. */
};

struct verbs_device {
	struct ibv_device device;
	const void *ops;
	atomic_int refcount;
	struct list_node entry;
	struct verbs_sysfs_dev *sysfs;
	uint64_t core_support;
};

struct verbs_device_ops {
	const char *name;
	uint32_t match_min_abi_version, match_max_abi_version;
	const void *match_table;
	const void *static_providers;
	bool (*match_device)(struct verbs_sysfs_dev *);
	struct verbs_context *(*alloc_context)(struct ibv_device *, int, void *);
	struct verbs_context *(*import_context)(struct ibv_device *, int);
	struct verbs_device *(*alloc_device)(struct verbs_sysfs_dev *);
	void (*uninit_device)(struct verbs_device *);
};

/* Number of functions in struct verbs_context_ops, which are in alphabetical order. */
enum {
	OP_ALLOC_PD = 5,
	OP_CREATE_CQ = 15,
	OP_CREATE_QP = 19,
	OP_DEALLOC_PD = 26,
	OP_DEREG_MR = 28,
	OP_DESTROY_CQ = 31,
	OP_DESTROY_QP = 34,
	OP_FREE_CONTEXT = 39,
	OP_MODIFY_QP = 47,
	OP_POLL_CQ = 53,
	OP_POST_SEND = 55,
	OP_QUERY_DEVICE_EX = 58,
	OP_QUERY_PORT = 60,
	OP_REG_MR = 68,
	OPS = 76
};

extern void verbs_register_driver_34(const struct verbs_device_ops *);
extern void *_verbs_init_and_alloc_context(struct ibv_device *, int, size_t, struct verbs_context *, uint32_t);
extern void verbs_set_ops(struct verbs_context *, void *const *);
extern void verbs_uninit_context(struct verbs_context *);

struct stub_context {
	struct verbs_context context;
};

struct stub_cq {
	struct ibv_cq cq;
	unsigned int done;
	uint64_t wr_id;
};

/* struct verbs_mr of rdma-core: the region and its kind. */
struct stub_mr {
	struct ibv_mr mr;
	int type, access;
};

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof *pd);

	(void)context;
	pd->handle = 770;
	return pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	struct stub_mr *mr = calloc(1, sizeof *mr);

	(void)pd, (void)addr, (void)length, (void)iova;
	mr->access = access;
	mr->mr.lkey = 771;
	return &mr->mr;
}

static int dereg_mr(struct stub_mr *mr)
{
	free(mr);
	return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe, struct ibv_comp_channel *channel, int vector)
{
	struct stub_cq *cq = calloc(1, sizeof *cq);

	(void)context, (void)channel, (void)vector;
	cq->cq.cqe = cqe;
	return &cq->cq;
}

static int destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	return 0;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *qp = calloc(1, sizeof *qp);

	qp->context = pd->context;
	qp->pd = pd;
	qp->send_cq = attr->send_cq;
	qp->recv_cq = attr->recv_cq;
	qp->qp_num = 772;
	return qp;
}

static int destroy_qp(struct ibv_qp *qp)
{
	free(qp);
	return 0;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp, (void)attr, (void)mask;
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct stub_cq *cq = (struct stub_cq *)qp->send_cq;

	(void)bad;
	cq->wr_id = wr->wr_id;
	cq->done++;
	return 0;
}

static int poll_cq(struct ibv_cq *ibcq, int entries, struct ibv_wc *wc)
{
	struct stub_cq *cq = (struct stub_cq *)ibcq;

	if (entries < 1 || !cq->done)
		return 0;
	memset(wc, 0, sizeof *wc);
	wc->wr_id = cq->wr_id;
	wc->vendor_err = 77;
	cq->done--;
	return 1;
}

static int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			   struct ibv_device_attr_ex *attr, size_t size)
{
	(void)context, (void)input, (void)size;
	strcpy(attr->orig_attr.fw_ver, "stub");
	attr->orig_attr.max_qp = 773;
	attr->orig_attr.phys_port_cnt = 1;
	return 0;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
	(void)context, (void)port;
	attr->state = IBV_PORT_ACTIVE;
	attr->lid = 774;
	return 0;
}

static void free_context(struct ibv_context *context)
{
	struct stub_context *stub = (struct stub_context *)((char *)context - offsetof(struct verbs_context, context));

	verbs_uninit_context(&stub->context);
	free(stub);
}

static struct verbs_context *alloc_context(struct ibv_device *device, int fd, void *private_data)
{
	void *ops[OPS] = {
		[OP_ALLOC_PD] = alloc_pd, [OP_CREATE_CQ] = create_cq, [OP_CREATE_QP] = create_qp,
		[OP_DEALLOC_PD] = dealloc_pd, [OP_DEREG_MR] = dereg_mr, [OP_DESTROY_CQ] = destroy_cq,
		[OP_DESTROY_QP] = destroy_qp, [OP_FREE_CONTEXT] = free_context, [OP_MODIFY_QP] = modify_qp,
		[OP_POLL_CQ] = poll_cq, [OP_POST_SEND] = post_send, [OP_QUERY_DEVICE_EX] = query_device_ex,
		[OP_QUERY_PORT] = query_port, [OP_REG_MR] = reg_mr,
	};
	struct stub_context *stub;

	(void)private_data;
	stub = _verbs_init_and_alloc_context(device, fd, sizeof *stub, &((struct stub_context *)0)->context, 0);
	if (!stub)
		return NULL;
	verbs_set_ops(&stub->context, ops);
	stub->context.context.async_fd = eventfd(0, EFD_CLOEXEC);
	return &stub->context;
}

static bool match_device(struct verbs_sysfs_dev *device)
{
	return !strcmp(device->ibdev_name, "stub0");
}

static struct verbs_device *alloc_device(struct verbs_sysfs_dev *sysfs)
{
	(void)sysfs;
	return calloc(1, sizeof(struct verbs_device));
}

static void uninit_device(struct verbs_device *device)
{
	free(device);
}

static const struct verbs_device_ops stub = {
	.name = "stub",
	.match_min_abi_version = 1,
	.match_max_abi_version = 1,
	.match_device = match_device,
	.alloc_context = alloc_context,
	.alloc_device = alloc_device,
	.uninit_device = uninit_device,
};

static __attribute__((constructor)) void register_stub(void)
{
	verbs_register_driver_34(&stub);
}
