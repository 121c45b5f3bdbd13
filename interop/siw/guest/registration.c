/* Prints the result of ibv_reg_mr for all kinds of memory, one line per case with its name. The
 * program runs on siw and on uiw, and the results are compared. */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define PAGES 8

static struct ibv_pd *pd;
static size_t page;

static void ask(const char *name, void *at, size_t length, int access)
{
	errno = 0;
	struct ibv_mr *mr = ibv_reg_mr(pd, at, length, access);

	printf("%s: %s\n", name, mr ? "registered" : strerrorname_np(errno) ? strerrorname_np(errno) : "?");
	if (mr)
		ibv_dereg_mr(mr);
}

static char *map(int protection)
{
	char *at = mmap(NULL, PAGES * page, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return at;
}

/* Returns the pages of the kernel's clock, which belong to a device (VM_PFNMAP). */
static void *clock_pages(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	void *at = NULL;

	while (maps && fgets(line, sizeof line, maps))
		if (strstr(line, "[vvar]"))
			at = (void *)strtoul(line, NULL, 16);
	if (maps)
		fclose(maps);
	return at;
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;

	page = sysconf(_SC_PAGESIZE);
	pd = context ? ibv_alloc_pd(context) : NULL;
	if (!pd) {
		fprintf(stderr, "no device\n");
		return 2;
	}
	char *both = map(PROT_READ | PROT_WRITE), *readable = map(PROT_READ), *none = map(PROT_NONE);
	FILE *file = tmpfile();

	ask("all rights", both, PAGES * page, ALL);
	ask("in the middle of a page", both + 100, 200, ALL);
	ask("length 0", both, 0, ALL);
	ask("beyond 2^64", both, SIZE_MAX, ALL);
	ask("beyond what a program has", both, (size_t)1 << 46, ALL);
	ask("no address of a program", (void *)0xdead0000beef0000UL, 64, ALL);
	ask("page 0", NULL, 64, ALL);
	ask("remote write without local write", both, 64, IBV_ACCESS_REMOTE_WRITE);
	ask("remote atomics without local write", both, 64, IBV_ACCESS_REMOTE_ATOMIC);
	munmap(both + 2 * page, page);
	ask("a hole", both, PAGES * page, ALL);
	ask("before a hole", both, 2 * page, ALL);
	ask("behind a hole", both + 3 * page, page, ALL);
	ask("up to a hole and a byte", both + 2 * page - 1, 2, 0);
	ask("no access, read", none, page, 0);
	ask("no access, all rights", none, page, ALL);
	ask("read-only, no right", readable, page, 0);
	ask("read-only, remote read", readable, page, IBV_ACCESS_REMOTE_READ);
	ask("read-only, local write", readable, page, IBV_ACCESS_LOCAL_WRITE);
	ask("read-only, all rights", readable, page, ALL);
	ask("code, remote read", (void *)main, 16, IBV_ACCESS_REMOTE_READ);
	ask("code, all rights", (void *)main, 16, ALL);
	ask("pages of a device", clock_pages(), page, 0);
	if (file && !ftruncate(fileno(file), 2 * page)) {
		char *mapped = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);

		ask("a shared file", mapped, 2 * page, ALL);
		ask("behind the end of a file, read", mapped, 3 * page, 0);
		ask("behind the end of a file, all rights", mapped, 3 * page, ALL);
		mapped = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
		ask("a private file", mapped, 2 * page, ALL);
	}
	return 0;
}
