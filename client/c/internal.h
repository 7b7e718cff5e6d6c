/* Shared by the files of the C client. */
#ifndef WHEELD_INTERNAL_H
#define WHEELD_INTERNAL_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "wheeld.h"

/* -- errors (result.c) ------------------------------------------------------------------------- */

/* Have wheeld_message() say this; returns `result`. */
__attribute__((format(printf, 2, 3))) int fail(int result, const char *format, ...);

/* The same, and what errno means behind it. */
__attribute__((format(printf, 2, 3))) int fail_errno(int result, const char *format, ...);

/* -- a daemon's files (place.c) ---------------------------------------------------------------- */

/* The runtime directory of a daemon, and the user whose it is. */
typedef struct place {
    int fd;
    uid_t owner;
    char path[PATH_MAX];
} place;

/* A mapped segment. */
typedef struct mapping {
    void *at; /* NULL: not mapped */
    uint64_t bytes;
} mapping;

/* Find a daemon's runtime directory, and make sure that it may be believed. */
int place_find(place *p, const char *name, const char *runtime_dir);

/* The same file under a number above 2, which no message of the process is written to: it may have
 * closed its standard descriptors. */
int above_standard(int fd);

/* Open a FIFO of the daemon. */
int place_open_fifo(const place *p, const char *name, int *fd);

/* Is it a FIFO of the daemon's user? */
bool place_has_fifo(const place *p, int fd);

/* Map a segment of a kind (enum wh_kind). */
int place_map(const place *p, const char *name, int kind, bool writable, mapping *m);

void mapping_drop(mapping *m);

/* -- the control socket (connection.c) --------------------------------------------------------- */

typedef struct connection {
    int fd;
    int passed; /* a descriptor that came with an answer, for the reader to close; or -1 */
    size_t used;
    char line[1 << 16]; /* the answer, zero-terminated */
} connection;

enum heard { HEARD_NOTHING_YET, HEARD_ANSWER, HEARD_END };

/* NULL: it failed, and wheeld_message() says why. */
connection *connection_open(const place *p, int *result);
void connection_close(connection *c);
bool connection_send(const connection *c, const char *line);

/* Wait for one line, until `until` of CLOCK_MONOTONIC. */
enum heard connection_hear(connection *c, int64_t until);

/* The result for an answer: WHEELD_OK, or that of the error that it tells of. */
int answer_result(const char *answer);

/* Write what both sides must agree on, the end of a hello and of a resume: layout, time. */
void write_kin(char *out, size_t size);

#endif
