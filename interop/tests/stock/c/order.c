/* This program needs only librdmacm, so the loader places the C library before libibverbs. The
 * functions of the C library that libibverbs exports must be interposed nevertheless. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHECK(is_so)                                                                                                   \
	do {                                                                                                           \
		if (!(is_so)) {                                                                                        \
			fprintf(stderr, "%d: %s\n", __LINE__, #is_so);                                                 \
			exit(EXIT_FAILURE);                                                                            \
		}                                                                                                      \
	} while (0)

static void *of(void *library, const char *name)
{
	void *found = dlsym(library, name);
	Dl_info info;

	CHECK(found && dladdr(found, &info) && strstr(info.dli_fname, "libibverbs"));
	return found;
}

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	void *library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
	struct sigaction old;
	sigset_t set;
	Dl_info info;
	char *pages;

	CHECK(channel && library);
	CHECK(dladdr(dlsym(RTLD_DEFAULT, "munmap"), &info) && !strstr(info.dli_fname, "libibverbs"));
	pages = ((__typeof__(&mmap))of(library, "mmap"))(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED);
	pages[0] = 1;
	CHECK(!((__typeof__(&madvise))of(library, "madvise"))(pages, 1 << 16, MADV_DONTNEED));
	CHECK(pages[0] == 0);
	CHECK(!((__typeof__(&munmap))of(library, "munmap"))(pages, 1 << 16));
	CHECK(!((__typeof__(&sigaction))of(library, "sigaction"))(SIGUSR1, NULL, &old));
	CHECK(!((__typeof__(&sigprocmask))of(library, "sigprocmask"))(SIG_BLOCK, NULL, &set));
	CHECK(!((__typeof__(&pthread_sigmask))of(library, "pthread_sigmask"))(SIG_BLOCK, NULL, &set));
	rdma_destroy_event_channel(channel);
	puts("functions are as they should be");
	return EXIT_SUCCESS;
}
