/* Forks before and after the first use of the libraries, with and without exec. A child that
 * calls exec becomes an independent program and inherits no descriptor of the engine. A child
 * that does not may close the descriptors it inherited, and the parent's engine is unaffected. */
#include <dirent.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what)
{
	fprintf(stderr, "%s (process %d)\n", what, getpid());
	_exit(1);
}

struct mine {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
};

static char memory[4096];

static struct mine use(void)
{
	struct mine mine;
	struct ibv_device **list = ibv_get_device_list(NULL);

	if (!list || !list[0])
		fail("no device");
	mine.context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	if (!mine.context)
		fail("ibv_open_device");
	mine.pd = ibv_alloc_pd(mine.context);
	mine.cq = ibv_create_cq(mine.context, 16, NULL, NULL, 0);
	if (!mine.pd || !mine.cq)
		fail("ibv_alloc_pd, ibv_create_cq");
	mine.mr = ibv_reg_mr(mine.pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	if (!mine.mr)
		fail("ibv_reg_mr");
	return mine;
}

/* Checks that objects created before still work. */
static void still(struct mine *mine)
{
	struct ibv_device_attr attr;
	struct ibv_wc wc;
	struct ibv_qp_init_attr init = {
		.send_cq = mine->cq, .recv_cq = mine->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(mine->pd, &init);

	if (!qp || ibv_destroy_qp(qp))
		fail("a queue pair");
	if (ibv_poll_cq(mine->cq, 1, &wc) != 0 || ibv_query_device(mine->context, &attr))
		fail("the objects made before");
}

static int end(struct mine *mine)
{
	int error = ibv_dereg_mr(mine->mr);

	error |= ibv_destroy_cq(mine->cq);
	error |= ibv_dealloc_pd(mine->pd);
	error |= ibv_close_device(mine->context);
	return error;
}

static void wait_for(pid_t child, const char *what)
{
	int status;

	if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status))
		fail(what);
}

static void exec_self(void)
{
	execl("/proc/self/exe", "fork_exec", "child", (char *)NULL);
	fail("exec");
}

/* Returns the number of open descriptors except the standard streams and the directory being
 * read. */
static int descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	int count = 0;

	while ((entry = readdir(folder))) {
		int fd = atoi(entry->d_name);

		count += entry->d_name[0] != '.' && fd > 2 && fd != dirfd(folder);
	}
	closedir(folder);
	return count;
}

int main(int argc, char **argv)
{
	struct mine mine;
	int before = descriptors();
	pid_t child;

	if (argc > 2) {
		if (before > atoi(argv[2]))
			fail("descriptors of the engine came through exec");
		return 0;
	}
	if (argc > 1) {
		mine = use();
		still(&mine);
		return end(&mine);
	}

	/* Fork before the first use. */
	if (!(child = fork())) {
		mine = use();
		still(&mine);
		_exit(end(&mine));
	}
	wait_for(child, "a child of before the first use");
	if (!(child = fork()))
		exec_self();
	wait_for(child, "a child of before the first use, with exec");

	/* Fork after the first use. */
	mine = use();
	if (!(child = fork()))
		exit(0);
	wait_for(child, "a child that does nothing");
	still(&mine);
	if (!(child = fork())) {
		alarm(20);
		/* The calls may fail, but they must not hang or affect the parent's objects. */
		end(&mine);
		exit(0);
	}
	wait_for(child, "a child that closes what it inherited");
	still(&mine);
	if (!(child = fork())) {
		mine = use();
		still(&mine);
		_exit(end(&mine));
	}
	wait_for(child, "a child with an engine of its own");
	still(&mine);
	if (!(child = fork()))
		exec_self();
	wait_for(child, "a child with exec");
	still(&mine);
	if (!(child = fork())) {
		char allowed[16];

		snprintf(allowed, sizeof(allowed), "%d", before);
		execl("/proc/self/exe", "fork_exec", "count", allowed, (char *)NULL);
		fail("exec");
	}
	wait_for(child, "a child that counts its descriptors");
	still(&mine);
	if (end(&mine))
		fail("the end");
	return 0;
}
