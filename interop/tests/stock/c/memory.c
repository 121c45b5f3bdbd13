/* Tests registered memory that does not exist or no longer exists: which registrations are
 * refused, and what a peer's access does to a process that has unmapped, remapped, protected or
 * truncated registered memory (`protection.c` covers mprotect). Requests complete after the peer
 * has placed the data (UIW_ACK=on). */
#define _GNU_SOURCE
#include "pages.h"
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static const enum ibv_wr_opcode operations[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
#define OPERATIONS (sizeof operations / sizeof *operations)

static unsigned bytes_of(enum ibv_wr_opcode opcode, unsigned bytes)
{
	return opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : bytes;
}

static void refused(struct ibv_pd *pd, void *at, size_t length, int access, int error)
{
	errno = 0;
	CHECK(!ibv_reg_mr(pd, at, length, access));
	CHECK(errno == error);
}

static void accepted(struct ibv_pd *pd, void *at, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, at, length, access);

	CHECK(mr);
	CHECK(!ibv_dereg_mr(mr));
}

static void registration(void)
{
	struct pair pair = connected();
	struct ibv_pd *pd = pair.b.id->pd;
	char *both = map(PROT_READ | PROT_WRITE), *readable = map(PROT_READ), *none = map(PROT_NONE);
	const int rights[] = { IBV_ACCESS_LOCAL_WRITE, ALL, IBV_ACCESS_MW_BIND };
	FILE *file = tmpfile();
	char *mapped;

	refused(pd, both, 0, ALL, EINVAL);
	refused(pd, both, SIZE_MAX, ALL, EINVAL);
	refused(pd, both, SIZE_MAX / 2, ALL, EFAULT);
	refused(pd, (void *)0xdead0000beef0000UL, 64, ALL, EFAULT);
	refused(pd, both, 64, 1 << 9, EINVAL);
	refused(pd, both, 64, IBV_ACCESS_REMOTE_WRITE, EINVAL);
	/* A page in the middle is unmapped. */
	both[0] = 77;
	both[3 * PAGE] = 78;
	CHECK(!munmap(both + 2 * PAGE, PAGE));
	refused(pd, both, LENGTH, ALL, EFAULT);
	refused(pd, both + 2 * PAGE - 1, 2, 0, EFAULT);
	accepted(pd, both, 2 * PAGE, ALL);
	accepted(pd, both + 3 * PAGE, LENGTH - 3 * PAGE, ALL);
	CHECK(both[0] == 77 && both[3 * PAGE] == 78);
	refused(pd, none, LENGTH, 0, EFAULT);
	refused(pd, none, LENGTH, ALL, EFAULT);
	accepted(pd, readable, LENGTH, 0);
	accepted(pd, readable, LENGTH, IBV_ACCESS_REMOTE_READ);
	for (size_t i = 0; i < sizeof rights / sizeof *rights; i++)
		refused(pd, readable, LENGTH, rights[i], EFAULT);
	/* Code can be read but not written. */
	accepted(pd, (void *)registration, 16, IBV_ACCESS_REMOTE_READ);
	refused(pd, (void *)registration, 16, ALL, EFAULT);
	/* A mapping of a file extends beyond the end of the file. */
	CHECK(file && !ftruncate(fileno(file), 2 * PAGE));
	mapped = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
	CHECK(mapped != MAP_FAILED);
	accepted(pd, mapped, 2 * PAGE, ALL);
	refused(pd, mapped, 3 * PAGE, ALL, EFAULT);
	refused(pd, mapped, 3 * PAGE, 0, EFAULT);
	/* With on-demand paging the memory is not checked. */
	accepted(pd, none, LENGTH, ALL | IBV_ACCESS_ON_DEMAND);
	accepted(pd, NULL, SIZE_MAX, ALL | IBV_ACCESS_ON_DEMAND);
	refused(pd, both, 0, ALL | IBV_ACCESS_ON_DEMAND, EINVAL);
	fclose(file);
}

static void unmapped(void)
{
	for (size_t i = 0; i < OPERATIONS; i++) {
		struct pair pair = connected();
		char *memory = map(PROT_READ | PROT_WRITE);
		struct ibv_mr *mr = ibv_reg_mr(pair.b.id->pd, memory, LENGTH, ALL);

		CHECK(mr);
		CHECK(request(&pair, operations[i], mr, 0, bytes_of(operations[i], LENGTH)) == IBV_WC_SUCCESS);
		CHECK(!munmap(memory + PAGE, PAGE));
		/* The other pages are still accessible. */
		CHECK(request(&pair, operations[i], mr, 0, bytes_of(operations[i], PAGE)) == IBV_WC_SUCCESS);
		CHECK(request(&pair, operations[i], mr, 2 * PAGE, bytes_of(operations[i], PAGE)) == IBV_WC_SUCCESS);
		CHECK(request(&pair, operations[i], mr, PAGE, bytes_of(operations[i], 64)) != IBV_WC_SUCCESS);
		CHECK(!ibv_dereg_mr(mr));
	}
}

static void check_pattern(const unsigned char *memory, size_t length)
{
	for (size_t i = 0; i < length; i++)
		CHECK(memory[i] == (unsigned char)(i * 7 + 1));
}

static void fill_pattern(unsigned char *memory, size_t length)
{
	for (size_t i = 0; i < length; i++)
		memory[i] = i * 7 + 1;
}

/* Memory that is mapped in the place of registered memory is neither written nor read. */
static void mapped_again(void)
{
	for (int how = 0; how < 5; how++) {
		struct pair pair = connected();
		unsigned char *memory = map(PROT_READ | PROT_WRITE), *again = memory, *moved;
		struct ibv_mr *mr = ibv_reg_mr(pair.b.id->pd, memory, LENGTH, ALL);
		const int both = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;

		CHECK(mr);
		CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, 0, LENGTH) == IBV_WC_SUCCESS);
		switch (how) {
		case 0:
			CHECK(!munmap(memory, LENGTH));
			again = mmap(memory, LENGTH, both, flags | MAP_FIXED_NOREPLACE, -1, 0);
			break;
		case 1:
			again = mmap(memory, LENGTH, both, flags | MAP_FIXED, -1, 0);
			break;
		case 2:
			moved = map(both);
			CHECK(mremap(memory, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, moved) == moved);
			again = mmap(memory, LENGTH, both, flags | MAP_FIXED_NOREPLACE, -1, 0);
			break;
		case 3:
			/* The kernel rounds the length up to whole pages. */
			CHECK(mremap(memory, LENGTH, PAGE - 100, 0) == memory);
			again = mmap(memory + PAGE, LENGTH - PAGE, both, flags | MAP_FIXED_NOREPLACE, -1, 0);
			CHECK(again == memory + PAGE);
			CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, 0, PAGE) == IBV_WC_SUCCESS);
			break;
		case 4:
			CHECK(!madvise(memory, LENGTH, MADV_DONTNEED));
			break;
		}
		fill_pattern(again, LENGTH - PAGE);
		CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, again - memory, LENGTH - PAGE) != IBV_WC_SUCCESS);
		check_pattern(again, LENGTH - PAGE);
		/* After a new registration the memory can be accessed. */
		struct pair other = connected();
		struct ibv_mr *new = ibv_reg_mr(other.b.id->pd, again, LENGTH - PAGE, ALL);
		CHECK(new && request(&other, IBV_WR_RDMA_WRITE, new, 0, LENGTH - PAGE) == IBV_WC_SUCCESS);
		CHECK(again[0] == 0x5A && again[LENGTH - PAGE - 1] == 0x5A);
		CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(new));
	}
}

static void heap_that_shrinks(void)
{
	struct pair pair = connected();
	char *end = sbrk(0), *first = end + (PAGE - (uintptr_t)end % PAGE) % PAGE;
	struct ibv_mr *mr;

	CHECK(!brk(first + 8 * PAGE));
	CHECK((mr = ibv_reg_mr(pair.b.id->pd, first, 8 * PAGE, ALL)));
	CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, 0, 8 * PAGE) == IBV_WC_SUCCESS);
	CHECK(sbrk(-4 * (intptr_t)PAGE) == first + 8 * PAGE);
	CHECK(!brk(first + 8 * PAGE));
	CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, 0, 4 * PAGE) == IBV_WC_SUCCESS);
	CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, 4 * PAGE, 64) != IBV_WC_SUCCESS);
	CHECK(first[4 * PAGE] == 0);
	CHECK(!ibv_dereg_mr(mr));
}

static void truncated_file(void)
{
	for (size_t i = 0; i < OPERATIONS; i++) {
		struct pair pair = connected();
		FILE *file = tmpfile();
		struct ibv_mr *mr;
		char *mapped;

		CHECK(file && !ftruncate(fileno(file), LENGTH));
		mapped = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
		CHECK(mapped != MAP_FAILED && (mr = ibv_reg_mr(pair.b.id->pd, mapped, LENGTH, ALL)));
		CHECK(request(&pair, operations[i], mr, 0, bytes_of(operations[i], LENGTH)) == IBV_WC_SUCCESS);
		CHECK(!ftruncate(fileno(file), PAGE));
		CHECK(request(&pair, operations[i], mr, 0, bytes_of(operations[i], PAGE)) == IBV_WC_SUCCESS);
		CHECK(request(&pair, operations[i], mr, 4 * PAGE, bytes_of(operations[i], 2 * PAGE)) != IBV_WC_SUCCESS);
		CHECK(!ibv_dereg_mr(mr));
		fclose(file);
	}
}

/* Protects memory with a direct system call, which the libraries do not see. */
static int protect_unseen(void *at, size_t length, int protection)
{
	return syscall(SYS_mprotect, at, length, protection);
}

/* A protection that the libraries do not see takes effect at the time of the access. */
static void protected(void)
{
	char *memory = map(PROT_READ | PROT_WRITE);

	for (size_t i = 0; i < OPERATIONS; i++) {
		struct pair pair = connected(), other = connected();
		struct ibv_mr *mr = ibv_reg_mr(pair.b.id->pd, memory, LENGTH, ALL);
		struct ibv_mr *second = ibv_reg_mr(other.b.id->pd, memory, LENGTH, ALL);

		CHECK(mr && second);
		CHECK(!protect_unseen(memory, LENGTH, operations[i] == IBV_WR_RDMA_READ ? PROT_NONE : PROT_READ));
		CHECK(request(&pair, operations[i], mr, 0, bytes_of(operations[i], LENGTH)) != IBV_WC_SUCCESS);
		CHECK(!protect_unseen(memory, LENGTH, PROT_READ | PROT_WRITE));
		CHECK(request(&other, operations[i], second, 0, bytes_of(operations[i], LENGTH)) == IBV_WC_SUCCESS);
		CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(second));
	}
}

/* The memory of the program's own requests, as source and as sink. */
static void local_memory(void)
{
	const unsigned sizes[] = { 64, 3 * PAGE, LENGTH };

	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		for (int receives = 0; receives < 2; receives++) {
			struct pair pair = connected();
			char *memory = map(PROT_READ | PROT_WRITE);
			struct end *owner = receives ? &pair.b : &pair.a;
			struct ibv_mr *mr = ibv_reg_mr(owner->id->pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE);
			struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = sizes[i], .lkey = mr->lkey };
			struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
			struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
						    .send_flags = IBV_SEND_SIGNALED }, *bad;

			CHECK(!protect_unseen(memory, LENGTH, PROT_NONE));
			if (receives) {
				CHECK(!ibv_post_recv(pair.b.id->qp, &recv, &bad_recv));
				post_send(&pair.a, sizes[i]);
				CHECK(completion(&pair.b) == IBV_WC_LOC_PROT_ERR);
			} else {
				post_recv(&pair.b, LENGTH);
				CHECK(!ibv_post_send(pair.a.id->qp, &send, &bad));
				CHECK(completion(&pair.a) == IBV_WC_LOC_PROT_ERR);
			}
			CHECK(!ibv_dereg_mr(mr));
		}
	}
}

static void on_demand(void)
{
	struct pair pair = connected();
	char *memory = map(PROT_NONE);
	struct ibv_mr *mr = ibv_reg_mr(pair.b.id->pd, memory, LENGTH, ALL | IBV_ACCESS_ON_DEMAND);
	/* The header calls another function if the access rights are not a constant. */
	volatile int access = ALL | IBV_ACCESS_ON_DEMAND;
	struct ibv_mr *all = ibv_reg_mr(pair.b.id->pd, NULL, SIZE_MAX, access);

	CHECK(mr && all && !all->addr && all->length == SIZE_MAX);
	CHECK(mmap(memory, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
	CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, 0, LENGTH) == IBV_WC_SUCCESS);
	CHECK(memory[0] == 0x5A && memory[LENGTH - 1] == 0x5A);
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = LENGTH, .lkey = mr->lkey };
	CHECK(!ibv_advise_mr(pair.b.id->pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
	CHECK(!mprotect(memory, LENGTH, PROT_READ));
	CHECK(!ibv_advise_mr(pair.b.id->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
	CHECK(ibv_advise_mr(pair.b.id->pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1) == EFAULT);
	CHECK(!ibv_advise_mr(pair.b.id->pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1));
	CHECK(!munmap(memory, LENGTH));
	memory = map(PROT_READ | PROT_WRITE);
	CHECK(request(&pair, IBV_WR_RDMA_WRITE, all, (uintptr_t)memory, LENGTH) == IBV_WC_SUCCESS);
	CHECK(memory[0] == 0x5A && memory[LENGTH - 1] == 0x5A);
	CHECK(request(&pair, IBV_WR_RDMA_WRITE, all, PAGE, 8) != IBV_WC_SUCCESS);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(all));
}

static sigjmp_buf after;
static volatile sig_atomic_t caught;
static void *expected;

static void on_signal(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	CHECK(info->si_addr == expected);
	caught++;
	siglongjmp(after, 1);
}

static void on_plain_signal(int number)
{
	(void)number;
	caught++;
	siglongjmp(after, 1);
}

/* The program's signal handler receives the faults of the program, but not those caused by
 * copies of the library. */
static void handler_of_its_own(void)
{
	for (int plain = 0; plain < 2; plain++) {
		struct pair pair = connected();
		char *memory = map(PROT_READ | PROT_WRITE);
		struct ibv_mr *mr = ibv_reg_mr(pair.b.id->pd, memory, LENGTH, ALL);
		struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO }, old;

		CHECK(mr);
		caught = 0;
		if (plain)
			CHECK(signal(SIGSEGV, on_plain_signal) != SIG_ERR);
		else
			CHECK(!sigaction(SIGSEGV, &action, NULL));
		CHECK(!sigaction(SIGSEGV, NULL, &old));
		CHECK(plain ? old.sa_handler == on_plain_signal : old.sa_sigaction == on_signal);
		CHECK(!protect_unseen(memory, LENGTH, PROT_NONE));
		for (int i = 0; i < 3; i++) {
			expected = memory + i * PAGE;
			if (!sigsetjmp(after, 1))
				*(volatile char *)expected = 1;
			CHECK(caught == i + 1);
		}
		CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, 0, LENGTH) != IBV_WC_SUCCESS);
		CHECK(caught == 3);
		CHECK(signal(SIGSEGV, SIG_DFL) != SIG_ERR);
		CHECK(!ibv_dereg_mr(mr));
	}
}

/* A thread that blocks all signals drives connections like any other thread. */
static void blocked_signals(void)
{
	struct pair pair = connected();
	char *memory = map(PROT_READ | PROT_WRITE);
	struct ibv_mr *mr = ibv_reg_mr(pair.a.id->pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;
	sigset_t all, before;

	CHECK(!sigfillset(&all) && !pthread_sigmask(SIG_SETMASK, &all, &before));
	CHECK(!protect_unseen(memory, LENGTH, PROT_NONE));
	CHECK(!ibv_post_send(pair.a.id->qp, &wr, &bad));
	CHECK(completion(&pair.a) == IBV_WC_LOC_PROT_ERR);
	CHECK(!sigprocmask(SIG_SETMASK, &before, &all) && sigismember(&all, SIGTERM) && !sigismember(&all, SIGSEGV));
	CHECK(!ibv_dereg_mr(mr));
}

/* With the argument "crash", a fault of the program without a handler ends the program as usual. */
int main(int argc, char **argv)
{
	registration();
	unmapped();
	mapped_again();
	heap_that_shrinks();
	truncated_file();
	protected();
	local_memory();
	on_demand();
	handler_of_its_own();
	blocked_signals();
	printf("memory is as it should be\n");
	fflush(stdout);
	if (argc > 1 && !strcmp(argv[1], "crash"))
		*(volatile char *)map(PROT_NONE) = 1;
	return EXIT_SUCCESS;
}
