/* Doorbell: one byte in a FIFO that says "look at your ring"; never data.
 *
 * Both ends open it read-write, so a FIFO without a reader raises no SIGPIPE and one without a
 * writer reports no hang-up. A full FIFO means that the byte is there already.
 */
#ifndef WHEELD_DOORBELL_H
#define WHEELD_DOORBELL_H

#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

/* A descriptor, and which file that was when it was opened: a program may close all its descriptors
 * (to become a daemon, say), and then files of its own are under their numbers. */
typedef struct wh_fd {
    int number; /* -1: none */
    dev_t device;
    ino_t inode;
} wh_fd;

static inline wh_fd wh_fd_of(int number)
{
    struct stat file = {0};
    bool open = number >= 0 && fstat(number, &file) == 0;
    return (wh_fd){.number = open ? number : -1, .device = file.st_dev, .inode = file.st_ino};
}

static inline bool wh_fd_is_ours(const wh_fd *fd)
{
    struct stat file;
    return fd->number >= 0 && fstat(fd->number, &file) == 0 && file.st_ino == fd->inode &&
           file.st_dev == fd->device;
}

/* Close it, but not what somebody else has under its number. */
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

/* Empty the FIFO. Call it before looking at the ring, never after: a byte that comes in between
 * must stay for the next wait. */
static inline void wh_bell_clear(int fd)
{
    char bytes[512];
    while (read(fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes)
        ;
}

#endif
