/* Loaded into a process with LD_PRELOAD: each flush to disk takes SLOW_SYNC_US microseconds longer.
   Java flushes what is mapped with msync, other files with fdatasync or fsync. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void wait_longer(void)
{
    const char *text = getenv("SLOW_SYNC_US");
    long delay = text ? atol(text) : 0;
    struct timespec rest = {delay / 1000000, delay % 1000000 * 1000};
    while (nanosleep(&rest, &rest) != 0) {
    }
}

int msync(void *address, size_t length, int flags)
{
    int (*real)(void *, size_t, int) = dlsym(RTLD_NEXT, "msync");
    wait_longer();
    return real(address, length, flags);
}

int fdatasync(int file)
{
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    wait_longer();
    return real(file);
}

int fsync(int file)
{
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    wait_longer();
    return real(file);
}
