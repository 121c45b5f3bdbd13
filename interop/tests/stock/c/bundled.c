/* Loads an extension module as an interpreter does, and prints the number of devices that the
 * module sees in this process, in a thread, in a child, and in a program executed by the child.
 * The library bundled with the module answers -1. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int (*devices)(void);

static void say(const char *where)
{
	printf("%s: %s\n", where, devices() > 0 ? "uiw" : "bundled");
	fflush(stdout);
}

static void *in_thread(void *unused)
{
	say("thread");
	return unused;
}

int main(int argc, char **argv)
{
	void *module = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	pthread_t thread;
	pid_t child;
	int status;

	if (!module || !(devices = (int (*)(void))dlsym(module, "devices"))) {
		fprintf(stderr, "%s\n", dlerror());
		return EXIT_FAILURE;
	}
	if (argc > 2) {
		say(argv[2]);
		return EXIT_SUCCESS;
	}
	say("process");
	if (pthread_create(&thread, NULL, in_thread, NULL) || pthread_join(thread, NULL))
		return EXIT_FAILURE;
	if (!(child = fork())) {
		say("child");
		execl(argv[0], argv[0], argv[1], "program of the child", NULL);
		_exit(EXIT_FAILURE);
	}
	return waitpid(child, &status, 0) == child && !status ? EXIT_SUCCESS : EXIT_FAILURE;
}
