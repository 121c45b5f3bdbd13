/* Posts requests from and to a DMA-buf of the kernel's vgem driver on uiw's libibverbs, and
 * checks that invalid ones are refused. Prints "dmabuf: N checks" at the end. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/dma-buf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
/* Size of the buffer, the part of it that is registered, and the address at which the part
 * begins for peers. */
#define SIZE 65536
#define OFFSET 4106
#define LENGTH 9000
#define IOVA 0x7000000000aULL

/* Definitions from drm/drm.h, which only the package of libdrm contains. */
struct drm_mode_create_dumb {
	uint32_t height, width, bpp, flags, handle, pitch;
	uint64_t size;
};
struct drm_prime_handle {
	uint32_t handle, flags;
	int32_t fd;
};
#define DRM_IOCTL_MODE_CREATE_DUMB _IOWR('d', 0xb2, struct drm_mode_create_dumb)
#define DRM_IOCTL_PRIME_HANDLE_TO_FD _IOWR('d', 0x2d, struct drm_prime_handle)
#define DRM_CLOEXEC O_CLOEXEC
#define DRM_RDWR O_RDWR

static int checks;

#define CHECK(what) \
	do { \
		if (!(what)) { \
			printf("line %d: %s: %s\n", __LINE__, #what, strerror(errno)); \
			exit(1); \
		} \
		checks++; \
	} while (0)
#define REFUSED(call, error) \
	do { \
		errno = 0; \
		CHECK((call) == NULL && errno == (error)); \
	} while (0)

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static union ibv_gid gid;

/* Creates a buffer of the driver as a DMA-buf. */
static int make(int flags)
{
	int card = open("/dev/dri/card0", O_RDWR | O_CLOEXEC);
	struct drm_mode_create_dumb dumb = {.width = 128, .height = SIZE / 512, .bpp = 32};
	struct drm_prime_handle prime = {.flags = flags};

	CHECK(card >= 0);
	CHECK(ioctl(card, DRM_IOCTL_MODE_CREATE_DUMB, &dumb) == 0 && dumb.size == SIZE);
	prime.handle = dumb.handle;
	CHECK(ioctl(card, DRM_IOCTL_PRIME_HANDLE_TO_FD, &prime) == 0);
	close(card);
	return prime.fd;
}

static void sync_dmabuf(int fd, int end)
{
	struct dma_buf_sync sync = {.flags = DMA_BUF_SYNC_RW | (end ? DMA_BUF_SYNC_END : DMA_BUF_SYNC_START)};

	CHECK(ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync) == 0);
}

static struct ibv_qp *made(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = 8, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	return qp;
}

static void join(struct ibv_qp *qp, struct ibv_qp *to)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = to->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}},
	};

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* Posts one request between local and remote memory and waits for its completion. */
static void request(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_mr *mr, uint64_t at, struct ibv_mr *remote, uint64_t to)
{
	struct ibv_sge sge = {.addr = at, .length = LENGTH, .lkey = mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .wr.rdma = {to, remote->rkey}}, *bad;
	struct ibv_wc wc;
	int got;

	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	while ((got = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(got == 1 && wc.status == IBV_WC_SUCCESS);
}

static void fill(unsigned char *at, int seed)
{
	for (int i = 0; i < LENGTH; i++)
		at[i] = i * 7 + seed;
}

static int is_filled(const unsigned char *at, int seed)
{
	for (int i = 0; i < LENGTH; i++)
		if (at[i] != (unsigned char)(i * 7 + seed))
			return 0;
	return 1;
}

static void refusals(void)
{
	int buffer = make(DRM_RDWR | DRM_CLOEXEC), readable = make(DRM_CLOEXEC), ordinary = memfd_create("none", 0);
	struct ibv_mr *mr;

	CHECK(ftruncate(ordinary, SIZE) == 0);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, ordinary, ALL), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, ALL), EBADF);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, 0, 0, buffer, ALL), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, SIZE - 4096, 4097, 0, buffer, ALL), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, UINT64_MAX - 4095, 4096, 0, buffer, ALL), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 4096, 4096, 0x10010, buffer, ALL), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, buffer, ALL | IBV_ACCESS_ON_DEMAND), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, readable, ALL), EACCES);
	CHECK((mr = ibv_reg_dmabuf_mr(pd, 0, 4096, 0, readable, IBV_ACCESS_REMOTE_READ)));
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK((mr = ibv_reg_dmabuf_mr(pd, 0, SIZE, 0, buffer, ALL)));
	CHECK(ibv_dereg_mr(mr) == 0);
	close(buffer);
	close(readable);
	close(ordinary);
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	struct ibv_port_attr port;

	CHECK(context && (pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
	CHECK(ibv_query_port(context, 1, &port) == 0);
	for (int i = 0; i < port.gid_tbl_len; i++)
		if (ibv_query_gid(context, 1, i, &gid) == 0 && gid.raw[10] == 0xff && gid.raw[11] == 0xff)
			break;
	refusals();

	int fd = make(DRM_RDWR | DRM_CLOEXEC);
	unsigned char *own = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	unsigned char *at = own + OFFSET, host[LENGTH];
	struct ibv_mr *mr, *host_mr;
	struct ibv_qp *a = made(), *b = made();

	CHECK(own != MAP_FAILED);
	join(a, b);
	join(b, a);
	sync_dmabuf(fd, 0);
	memset(own, 0xee, SIZE);
	CHECK((mr = ibv_reg_dmabuf_mr(pd, OFFSET, LENGTH, IOVA, fd, ALL)));
	CHECK(mr->addr == (void *)OFFSET && mr->length == LENGTH);
	CHECK((host_mr = ibv_reg_mr(pd, host, LENGTH, ALL)));
	/* The region keeps the buffer alive. */
	close(fd);

	fill(host, 1);
	request(a, IBV_WR_RDMA_WRITE, host_mr, (uintptr_t)host, mr, IOVA);
	CHECK(is_filled(at, 1) && at[-1] == 0xee && at[LENGTH] == 0xee);
	fill(at, 2);
	request(a, IBV_WR_RDMA_READ, host_mr, (uintptr_t)host, mr, IOVA);
	CHECK(is_filled(host, 2));
	fill(at, 3);
	request(a, IBV_WR_RDMA_WRITE, mr, IOVA, host_mr, (uintptr_t)host);
	CHECK(is_filled(host, 3));
	fill(host, 4);
	request(a, IBV_WR_RDMA_READ, mr, IOVA, host_mr, (uintptr_t)host);
	CHECK(is_filled(at, 4) && at[-1] == 0xee && at[LENGTH] == 0xee);

	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(host_mr) == 0);
	CHECK(is_filled(at, 4));
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	printf("dmabuf: %d checks\n", checks);
	return 0;
}
