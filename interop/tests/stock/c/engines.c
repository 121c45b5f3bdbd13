/* Uses the libraries in the order of the arguments, and prints the number of engines in the
 * process after each of them:
 *   verbs         a queue pair of libibverbs, to which peers can connect
 *   cm            a listener of librdmacm
 *   sockets       a connection of TCP sockets
 *   second FILE   a queue pair of another copy of libibverbs
 *   list          the list of devices, for which no engine is needed
 *   unload        dlclose of the library that was used last, which must stay loaded
 * An engine with one shard has one thread named uiw-driver as soon as peers can connect. */
#define _GNU_SOURCE
#include "tcp.h"

#include <dirent.h>
#include <dlfcn.h>
#include <rdma/rdma_cma.h>
#include <sched.h>

/* Stores the name of a thread without its newline, or an empty name if the thread has ended. */
static void name_of(const char *thread, char name[32])
{
	char path[300];
	FILE *file;

	name[0] = 0;
	snprintf(path, sizeof path, "/proc/self/task/%s/comm", thread);
	file = fopen(path, "r");
	if (file && !fgets(name, 32, file))
		name[0] = 0;
	if (file)
		fclose(file);
	name[strcspn(name, "\n")] = 0;
}

/* New threads have the name of this program and get their own name a moment later. */
static int engines(void)
{
	char own[32], main_thread[16], name[32];
	int count, unnamed;

	snprintf(main_thread, sizeof main_thread, "%d", (int)getpid());
	name_of(main_thread, own);
	do {
		DIR *threads = opendir("/proc/self/task");
		struct dirent *thread;

		CHECK(threads);
		count = unnamed = 0;
		while ((thread = readdir(threads))) {
			if (thread->d_name[0] == '.' || !strcmp(thread->d_name, main_thread))
				continue;
			name_of(thread->d_name, name);
			count += !strcmp(name, "uiw-driver");
			unnamed += !strcmp(name, own);
		}
		closedir(threads);
		if (unnamed)
			sched_yield();
	} while (unnamed);
	return count;
}

static void *library(const char *name)
{
	void *opened = dlopen(name, RTLD_NOW | RTLD_LOCAL);

	if (!opened)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(opened);
	return opened;
}

#define FUNCTION(library, name) ((__typeof__(&name))dlsym(library, #name))

static void *verbs;

static void use_verbs(const char *file)
{
	verbs = library(file);
	struct ibv_device **devices = FUNCTION(verbs, ibv_get_device_list)(NULL);
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	struct ibv_context *context;
	struct ibv_pd *domain;
	struct ibv_qp *qp;

	CHECK(devices && devices[0] && (context = FUNCTION(verbs, ibv_open_device)(devices[0])));
	CHECK((domain = FUNCTION(verbs, ibv_alloc_pd)(context)));
	init.send_cq = init.recv_cq = FUNCTION(verbs, ibv_create_cq)(context, 1, NULL, NULL, 0);
	init.cap.max_send_wr = init.cap.max_recv_wr = init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	CHECK(init.send_cq && (qp = FUNCTION(verbs, ibv_create_qp)(domain, &init)));
	CHECK(!FUNCTION(verbs, ibv_modify_qp)(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static void unload(void)
{
	char line[1000];
	int mapped = 0;
	FILE *maps;

	CHECK(!dlclose(verbs) && (maps = fopen("/proc/self/maps", "r")));
	while (fgets(line, sizeof line, maps))
		mapped += strstr(line, "libibverbs.so") != NULL;
	fclose(maps);
	CHECK(mapped);
}

static void use_cm(void)
{
	void *cm = library("librdmacm.so.1");
	struct rdma_event_channel *channel = FUNCTION(cm, rdma_create_event_channel)();
	struct rdma_cm_id *id;
	union address at;

	CHECK(channel && !FUNCTION(cm, rdma_create_id)(channel, &id, NULL, RDMA_PS_TCP));
	loopback(&at, 0);
	CHECK(!FUNCTION(cm, rdma_bind_addr)(id, &at.any) && !FUNCTION(cm, rdma_listen)(id, 1));
}

static void use_sockets(void)
{
	union address at;
	socklen_t len;
	int listener = listening(&at, &len), ends[2];

	ends[0] = socket(family, SOCK_STREAM, 0);
	CHECK(ends[0] >= 0 && !connect(ends[0], &at.any, len));
	ends[1] = accept(listener, NULL, NULL);
	CHECK(ends[1] >= 0);
	crosses(ends[0], ends[1]);
}

int main(int argc, char **argv)
{
#ifdef LINKED
	CHECK(ibv_get_device_list && rdma_create_event_channel);
#endif
	for (int at = 1; at < argc; at++) {
		const char *step = argv[at];

		if (!strcmp(step, "verbs"))
			use_verbs("libibverbs.so.1");
		else if (!strcmp(step, "cm"))
			use_cm();
		else if (!strcmp(step, "sockets"))
			use_sockets();
		else if (!strcmp(step, "unload"))
			unload();
		else if (!strcmp(step, "list"))
			CHECK(FUNCTION((verbs = library("libibverbs.so.1")), ibv_get_device_list)(NULL));
		else
			use_verbs(argv[++at]);
		printf("%s: %d\n", step, engines());
	}
	fflush(stdout);
	_exit(0);
}
