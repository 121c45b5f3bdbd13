/* An allocator that returns memory to the system while it holds its lock, as some allocators do:
 * on any thread and during any allocation of the libraries, while other threads register memory,
 * drive connections or fork. It also returns memory that is still registered. */
#define _GNU_SOURCE
#include "pages.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 2000
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t), __libc_free(void *);

static pthread_mutex_t allocator = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool in_allocator;

static void enter(void)
{
	static const char message[] = "the allocator is called by itself\n";

	if (in_allocator) {
		if (write(STDERR_FILENO, message, sizeof message - 1) > 0)
			_exit(EXIT_FAILURE);
		_exit(EXIT_FAILURE);
	}
	pthread_mutex_lock(&allocator);
	in_allocator = true;
}

static void leave(void)
{
	in_allocator = false;
	pthread_mutex_unlock(&allocator);
}

#define LOCKED(call) void *result; enter(); result = (call); leave(); return result

void *malloc(size_t size) { LOCKED(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { LOCKED(__libc_calloc(count, size)); }
void *realloc(void *old, size_t size) { LOCKED(__libc_realloc(old, size)); }
void *memalign(size_t to, size_t size) { LOCKED(__libc_memalign(to, size)); }
void *aligned_alloc(size_t to, size_t size) { LOCKED(__libc_memalign(to, size)); }

int posix_memalign(void **result, size_t to, size_t size)
{
	*result = memalign(to, size);
	return *result ? 0 : ENOMEM;
}

void free(void *at)
{
	enter();
	__libc_free(at);
	leave();
}

/* Returns free pages to the system as an allocator does. */
static void give_back(void *at, size_t length)
{
	enter();
	CHECK(!madvise(at, length, MADV_DONTNEED));
	leave();
}

static atomic_bool done;

static void *give_back_again_and_again(void *at)
{
	while (!atomic_load(&done))
		give_back(at, LENGTH);
	return NULL;
}

static void *registers(void *of)
{
	struct ibv_pd *pd = of;
	struct ibv_mr *mrs[64];
	char *at = map(PROT_READ | PROT_WRITE);

	for (int i = 0; i < ROUNDS / 64; i++) {
		for (int j = 0; j < 64; j++)
			CHECK((mrs[j] = ibv_reg_mr(pd, at + j % PAGES * PAGE, PAGE, ALL)));
		for (int j = 0; j < 64; j++)
			CHECK(!ibv_dereg_mr(mrs[j]));
	}
	CHECK(!munmap(at, LENGTH));
	return NULL;
}

/* Returns unregistered memory to the system while other memory is registered and while the
 * process forks. */
static void while_others_register(void)
{
	struct pair pair = connected();
	pthread_t giving, registering[2];

	atomic_store(&done, false);
	CHECK(!pthread_create(&giving, NULL, give_back_again_and_again, map(PROT_READ | PROT_WRITE)));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&registering[i], NULL, registers, pair.b.id->pd));
	for (int i = 0; i < 20; i++) {
		int status;
		pid_t child = fork();

		CHECK(child >= 0);
		if (!child)
			_exit(0);
		CHECK(waitpid(child, &status, 0) == child && !status);
	}
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(registering[i], NULL));
	atomic_store(&done, true);
	CHECK(!pthread_join(giving, NULL));
}

/* Returns separate pieces of a registered region to the system. */
static void while_it_is_registered(void)
{
	struct pair pair = connected();
	char *memory = map(PROT_READ | PROT_WRITE);
	struct ibv_mr *mr = ibv_reg_mr(pair.b.id->pd, memory, LENGTH, ALL);

	CHECK(mr && request(&pair, IBV_WR_RDMA_WRITE, mr, 0, LENGTH) == IBV_WC_SUCCESS);
	for (int i = 0; i < PAGES; i += 2) {
		give_back(memory + i * PAGE, PAGE);
		CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, (i + 1) * PAGE, PAGE) == IBV_WC_SUCCESS);
		CHECK(memory[i * PAGE] == 0 && memory[(i + 1) * PAGE] == 0x5A);
	}
	/* The region keeps its memory but has other access rights. */
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, PAGE, PAGE) == IBV_WC_SUCCESS);
	CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, 0, PAGE) != IBV_WC_SUCCESS);
	CHECK(memory[0] == 0);
	CHECK(!ibv_dereg_mr(mr));
}

static void lock_before_fork(void)
{
	enter();
}

static void unlock_behind_fork(void)
{
	leave();
}

/* Registers the first fork handlers, as an allocator does: they run after all others have run. */
__attribute__((constructor)) static void at_fork(void)
{
	CHECK(!pthread_atfork(lock_before_fork, unlock_behind_fork, unlock_behind_fork));
}

int main(void)
{
	alarm(60);
	while_it_is_registered();
	while_others_register();
	printf("the allocator went on\n");
	return EXIT_SUCCESS;
}
