/* Runs a program in a sandbox like those of systemd and container runtimes: seccomp filters,
 * limits, no new privileges. System calls are given by number.
 *
 *     sandbox RULE.. -- PROGRAM ARGUMENT..
 *
 * permit=ACTION:FILE   all calls not listed in the file get ACTION: an error number, or `kill`
 * refuse=ERRNO:N,..    these calls fail
 * families=N,..        socket(2) of another family fails with EAFNOSUPPORT
 * namespaces           namespaces cannot be created or entered
 * write-exec           no memory can be both writable and executable
 * threads              no thread can be created, as if a limit of tasks were reached
 * limit=RESOURCE:N     sets a limit of setrlimit(2)
 * user=N               changes to this user */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "an architecture without filters here"
#endif

#define NAMESPACES (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)
#define FAILS(number) (SECCOMP_RET_ERRNO | (number))
#define LOW_WORD(argument) (offsetof(struct seccomp_data, args[argument]))

static struct sock_filter program[4096];
static unsigned short length;

static void fail(const char *what)
{
	fprintf(stderr, "sandbox: %s: %s\n", what, strerror(errno));
	exit(99);
}

static void add(unsigned short code, unsigned char yes, unsigned char no, unsigned int operand)
{
	if (length == sizeof program / sizeof *program) {
		errno = E2BIG;
		fail("too many rules");
	}
	program[length++] = (struct sock_filter){ code, yes, no, operand };
}

static void load(unsigned int offset)
{
	add(BPF_LD | BPF_W | BPF_ABS, 0, 0, offset);
}

static void load_number(void)
{
	load(offsetof(struct seccomp_data, nr));
}

static void answer(unsigned int action)
{
	add(BPF_RET | BPF_K, 0, 0, action);
}

static void begin(void)
{
	length = 0;
	load(offsetof(struct seccomp_data, arch));
	add(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, ARCH);
	answer(SECCOMP_RET_KILL_PROCESS);
	load_number();
}

/* Applies `action` to the call `number`. */
static void is(unsigned int number, unsigned int action)
{
	add(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, number);
	answer(action);
}

/* Applies `action` to the call `number` if `argument` has all bits of `all`; otherwise the next
 * rule decides. */
static void has(unsigned int number, int argument, unsigned int all, unsigned int action)
{
	add(BPF_JMP | BPF_JEQ | BPF_K, 0, 5, number);
	load(LOW_WORD(argument));
	add(BPF_ALU | BPF_AND | BPF_K, 0, 0, all);
	add(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, all);
	answer(action);
	load_number();
}

/* Like has(), but if `argument` has any bit of `any`. */
static void has_any(unsigned int number, int argument, unsigned int any, unsigned int action)
{
	add(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, number);
	load(LOW_WORD(argument));
	add(BPF_JMP | BPF_JSET | BPF_K, 0, 1, any);
	answer(action);
	load_number();
}

static void install(unsigned int otherwise)
{
	struct sock_fprog filter = { .len = length, .filter = program };

	answer(otherwise);
	filter.len = length;
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		fail("cannot install a filter");
}

static void refuse(char *list)
{
	unsigned int error = strtoul(list, &list, 10);

	begin();
	while (*list++)
		is(strtoul(list, &list, 10), FAILS(error));
	install(SECCOMP_RET_ALLOW);
}

static void permit(char *rule)
{
	char *file = strchr(rule, ':');
	unsigned int number;
	FILE *list;

	if (!file || !(list = fopen(file + 1, "r")))
		fail(rule);
	begin();
	while (fscanf(list, "%u", &number) == 1)
		is(number, SECCOMP_RET_ALLOW);
	fclose(list);
	install(strncmp(rule, "kill:", 5) ? FAILS(strtoul(rule, NULL, 10)) : SECCOMP_RET_KILL_PROCESS);
}

static void families(char *list)
{
	begin();
	add(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, SYS_socket);
	answer(SECCOMP_RET_ALLOW);
	load(LOW_WORD(0));
	for (list--; *list++;)
		is(strtoul(list, &list, 10), SECCOMP_RET_ALLOW);
	install(FAILS(EAFNOSUPPORT));
}

static void namespaces(void)
{
	begin();
	is(SYS_setns, FAILS(EPERM));
	is(SYS_clone3, FAILS(ENOSYS));
	has_any(SYS_unshare, 0, NAMESPACES, FAILS(EPERM));
	has_any(SYS_clone, 0, NAMESPACES, FAILS(EPERM));
	install(SECCOMP_RET_ALLOW);
}

static void write_exec(void)
{
	begin();
	has(SYS_mmap, 2, PROT_WRITE | PROT_EXEC, FAILS(EPERM));
	has(SYS_mprotect, 2, PROT_EXEC, FAILS(EPERM));
	has(SYS_pkey_mprotect, 2, PROT_EXEC, FAILS(EPERM));
	has(SYS_shmat, 2, SHM_EXEC, FAILS(EPERM));
	install(SECCOMP_RET_ALLOW);
}

static void threads(void)
{
	begin();
	is(SYS_clone3, FAILS(ENOSYS));
	has(SYS_clone, 0, CLONE_THREAD, FAILS(EAGAIN));
	install(SECCOMP_RET_ALLOW);
}

static void limit(const char *rule)
{
	static const struct { const char *name; int number; } known[] = {
		{ "nofile:", RLIMIT_NOFILE }, { "nproc:", RLIMIT_NPROC }, { "memlock:", RLIMIT_MEMLOCK },
		{ "fsize:", RLIMIT_FSIZE }, { "as:", RLIMIT_AS },
	};

	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		size_t length = strlen(known[i].name);

		if (!strncmp(rule, known[i].name, length)) {
			rlim_t value = strtoul(rule + length, NULL, 10);
			struct rlimit both = { value, value };

			if (setrlimit(known[i].number, &both))
				fail(rule);
			return;
		}
	}
	errno = EINVAL;
	fail(rule);
}

int main(int argc, char **argv)
{
	int i;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		fail("no new privileges");
	for (i = 1; i < argc && strcmp(argv[i], "--"); i++) {
		char *value = strchr(argv[i], '=');

		value = value ? value + 1 : "";
		if (!strncmp(argv[i], "permit=", 7))
			permit(value);
		else if (!strncmp(argv[i], "refuse=", 7))
			refuse(value);
		else if (!strncmp(argv[i], "families=", 9))
			families(value);
		else if (!strcmp(argv[i], "namespaces"))
			namespaces();
		else if (!strcmp(argv[i], "write-exec"))
			write_exec();
		else if (!strcmp(argv[i], "threads"))
			threads();
		else if (!strncmp(argv[i], "limit=", 6))
			limit(value);
		else if (!strncmp(argv[i], "user=", 5)) {
			unsigned int user = strtoul(value, NULL, 10);

			if (setresgid(user, user, user) || setresuid(user, user, user))
				fail(argv[i]);
		} else {
			errno = EINVAL;
			fail(argv[i]);
		}
	}
	if (i + 1 >= argc) {
		errno = EINVAL;
		fail("no program");
	}
	execvp(argv[i + 1], argv + i + 1);
	fail(argv[i + 1]);
}
