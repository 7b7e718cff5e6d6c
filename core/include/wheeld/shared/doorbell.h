/* Doorbell: one byte in a FIFO that says "look at your ring"; never data.
 *
 * The process that sleeps on it opens it read-write, so it reports no hang-up without a writer.
 * Another user in the daemon's group, who may only ring, opens it to write: a byte that somebody
 * else took would be a wake-up lost for ever, as nobody rings twice in one sleep. A full FIFO means
 * that the byte is there already.
 */
#ifndef WHEELD_DOORBELL_H
#define WHEELD_DOORBELL_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "wheeld/shared/atomics.h"

/* A descriptor, and the identity of its file: a program may close all its descriptors (to become a
 * daemon, say), and then reuse their numbers for its own files. */
typedef struct wh_fd {
    int number; /* -1: none */
    dev_t device;
    ino_t inode;
    bool rings_only; /* a FIFO that we may write but not read */
} wh_fd;

static inline bool wh_fd_rings_only(int fd) { return (fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY; }

static inline wh_fd wh_fd_of(int number)
{
    struct stat file = {0};
    bool open = number >= 0 && fstat(number, &file) == 0;
    return (wh_fd){.number = open ? number : -1,
                   .device = file.st_dev,
                   .inode = file.st_ino,
                   .rings_only = open && wh_fd_rings_only(number)};
}

/* The number of links of that file, 0 if it was removed; -1: the descriptor is no longer our
 * file. */
static inline int wh_fd_names(const wh_fd *fd)
{
    struct stat file;
    bool ours = fd->number >= 0 && fstat(fd->number, &file) == 0 && file.st_ino == fd->inode &&
                file.st_dev == fd->device;
    return ours ? (int)file.st_nlink : -1;
}

static inline bool wh_fd_is_ours(const wh_fd *fd) { return wh_fd_names(fd) >= 0; }

/* Close it, unless other code has another file under its number. */
static inline void wh_fd_close(wh_fd *fd)
{
    if (wh_fd_is_ours(fd))
        close(fd->number);
    fd->number = -1;
}

static inline void wh_bell_ring(int fd)
{
    char byte = 1;
    ssize_t written = write(fd, &byte, 1); /* EAGAIN: it rings already */
    (void)written;
}

/* The same where we may not read: without a reader the kernel would end a process that does not
 * expect SIGPIPE. No process sleeps there then, and a new one checks before it sleeps. */
static inline void wh_bell_ring_only(int fd)
{
    static const struct timespec at_once;
    sigset_t broken, before, pending;
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    if (sigpending(&pending) < 0 || pthread_sigmask(SIG_BLOCK, &broken, &before) != 0)
        return;
    char byte = 1;
    if (write(fd, &byte, 1) < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
        sigtimedwait(&broken, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static inline void wh_fd_ring(const wh_fd *fd)
{
    if (wh_unlikely(fd->rings_only))
        wh_bell_ring_only(fd->number);
    else
        wh_bell_ring(fd->number);
}

/* Empty the FIFO, but read at most a pipe's usual 64 KiB, so that writers cannot prolong this.
 * Bytes that are left only make the next wait short. Call it before looking at the ring, never
 * after: a byte that comes in between must stay for the next wait. */
static inline void wh_bell_clear(int fd)
{
    char bytes[512];
    for (int reads = 0; reads < 128; reads++)
        if (read(fd, bytes, sizeof bytes) != (ssize_t)sizeof bytes)
            return;
}

#endif
