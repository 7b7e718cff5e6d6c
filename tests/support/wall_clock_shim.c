/* A wall clock that tests can set: LD_PRELOAD over what a program asks the kernel.
 *
 * $STEP_FILE holds two offsets, of the wall clock and of the boot clock, ns. A timerfd of the wall
 * clock is the FIFO $STEP_FIFO: a byte in there says that the clock was set, as ECANCELED does from
 * a real one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000LL
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static volatile int64_t *offsets;
static int told = -1; /* the descriptor that stands for a timerfd */
static __typeof__(&clock_gettime) real_gettime;
static __typeof__(&read) real_read;

__attribute__((constructor)) static void begin(void)
{
    int fd = open(getenv("STEP_FILE"), O_RDWR);
    void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page == MAP_FAILED)
        abort();
    offsets = page;
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    if (!real_gettime)
        real_gettime = REAL(clock_gettime); /* it is called before constructors are */
    int result = real_gettime(id, t);
    if (result == 0 && offsets && (id == CLOCK_REALTIME || id == CLOCK_BOOTTIME)) {
        int64_t ns = t->tv_sec * SECOND_NS + t->tv_nsec + offsets[id == CLOCK_BOOTTIME];
        *t = (struct timespec){.tv_sec = ns / SECOND_NS, .tv_nsec = ns % SECOND_NS};
    }
    return result;
}

int timerfd_create(int clock, int flags)
{
    if (clock != CLOCK_REALTIME)
        return REAL(timerfd_create)(clock, flags);
    return told = open(getenv("STEP_FIFO"), O_RDWR | O_NONBLOCK | O_CLOEXEC);
}

int timerfd_settime(int fd, int flags, const struct itimerspec *to, struct itimerspec *before)
{
    return fd == told ? 0 : REAL(timerfd_settime)(fd, flags, to, before);
}

ssize_t read(int fd, void *to, size_t size)
{
    if (!real_read)
        real_read = REAL(read);
    if (fd != told || told < 0)
        return real_read(fd, to, size);
    char bytes[64];
    if (real_read(fd, bytes, sizeof bytes) > 0)
        errno = ECANCELED;
    return -1;
}
