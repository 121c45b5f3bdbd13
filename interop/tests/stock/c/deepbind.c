/* A program that bundles its own libibverbs, as wheels do. It opens the library by path with
 * RTLD_DEEPBIND, so that no other library of the same name replaces it. argv[1] is the path. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    void *(*list)(int *) = (void *(*)(int *)) dlsym(library, "ibv_get_device_list");
    if (!list)
        return 4;
    int count = 0;
    list(&count);
    printf("%d devices\n", count);
    return 0;
}
