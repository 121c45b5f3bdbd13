// Opens the first device, and prints the result and whether the process has more rights than its
// user.
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <sys/auxv.h>

int main(void) {
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    struct ibv_context *context = count > 0 ? ibv_open_device(list[0]) : NULL;
    printf("secure=%lu devices=%d errno=%d\n", getauxval(AT_SECURE), count, context ? 0 : errno);
    return context && ibv_close_device(context);
}
