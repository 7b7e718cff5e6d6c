/* Doorbell: one byte in a FIFO that says "look at your ring"; never data.
 *
 * Both ends open it read-write, so a FIFO without a reader raises no SIGPIPE and one without a
 * writer reports no hang-up. A full FIFO means that the byte is there already.
 */
#ifndef WHEELD_DOORBELL_H
#define WHEELD_DOORBELL_H

#include <unistd.h>

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
