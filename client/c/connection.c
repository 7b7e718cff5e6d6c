/* The control socket: one JSON object a line, each answered by one; control/connection.py. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "json.h"
#include "wheeld/shared/geometry.h"
#include "wheeld/worker/waits.h"

/* Does the daemon's user, or root, listen at the other end? */
static int check_peer(const connection *c, const place *p)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return fail_errno(WHEELD_SYSTEM, "cannot tell who answers in %s", p->path);
    if (peer.uid == p->owner || peer.uid == 0)
        return WHEELD_OK;
    return fail(WHEELD_NOT_PERMITTED, "uid %u answers at the socket of a daemon of uid %u",
                peer.uid, p->owner);
}

static int reach(connection *c, const place *p)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = snprintf(address.sun_path, sizeof address.sun_path, "%s/control.sock", p->path);
    if (n >= (int)sizeof address.sun_path)
        return fail(WHEELD_INVALID, "%s: a socket's path has at most 107 bytes", p->path);
    c->fd = above_standard(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (c->fd < 0)
        return fail_errno(WHEELD_SYSTEM, "no socket");
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0)
        return fail_errno(errno == EACCES ? WHEELD_NOT_PERMITTED : WHEELD_NOT_RUNNING,
                          "no wheeld daemon answers in %s", p->path);
    return check_peer(c, p);
}

connection *connection_open(const place *p, int *result)
{
    connection *c = malloc(sizeof *c);
    if (c == NULL) {
        *result = fail(WHEELD_NO_MEMORY, "no memory for a connection");
        return NULL;
    }
    c->fd = c->passed = -1;
    c->used = 0;
    if ((*result = reach(c, p)) == WHEELD_OK)
        return c;
    connection_close(c);
    return NULL;
}

void connection_close(connection *c)
{
    if (c && c->passed >= 0)
        close(c->passed);
    if (c && c->fd >= 0)
        close(c->fd);
    free(c);
}

bool connection_send(const connection *c, const char *line)
{
    size_t length = strlen(line); /* far less than a socket's buffer has room for */
    return send(c->fd, line, length, MSG_NOSIGNAL) == (ssize_t)length;
}

static void keep_descriptors(connection *c, struct msghdr *m)
{
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= h->cmsg_len; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
            if (c->passed < 0)
                c->passed = above_standard(fd);
            else
                close(fd);
        }
    }
}

/* Read what has arrived. */
static enum heard receive(connection *c)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
    struct iovec part = {c->line + c->used, sizeof c->line - 1 - c->used};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof control};
    ssize_t n = recvmsg(c->fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return HEARD_NOTHING_YET;
    if (n <= 0) /* it hung up, or the line is too long for an answer */
        return HEARD_END;
    keep_descriptors(c, &m);
    c->used += (size_t)n;
    c->line[c->used] = '\0';
    return c->line[c->used - 1] == '\n' ? HEARD_ANSWER : HEARD_NOTHING_YET;
}

enum heard connection_hear(connection *c, int64_t until)
{
    if (c->used && c->line[c->used - 1] == '\n') /* of the answer before */
        c->used = 0;
    for (;;) {
        enum heard heard = receive(c);
        int64_t rest = until - wh_thread_now();
        if (heard != HEARD_NOTHING_YET || rest <= 0)
            return heard;
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        poll(&p, 1, (int)(rest / 1000000 < 1000 ? rest / 1000000 + 1 : 1000));
    }
}

int answer_result(const char *answer)
{
    char kind[64], error[768];
    if (json_is_true(json_member(answer, "ok")))
        return WHEELD_OK;
    json_text(json_member(answer, "kind"), kind, sizeof kind);
    json_text(json_member(answer, "error"), error, sizeof error);
    int result = strcmp(kind, "LayoutMismatch") == 0     ? WHEELD_MISMATCH
                 : strcmp(kind, "PermissionError") == 0  ? WHEELD_NOT_PERMITTED
                 : strcmp(kind, "ValueError") == 0       ? WHEELD_INVALID
                 : strcmp(kind, "DaemonNotRunning") == 0 ? WHEELD_NOT_RUNNING
                                                         : WHEELD_REFUSED;
    return fail(result, "%s", *error ? error : "the daemon refused, and gave no reason");
}

/* The time namespace of this process, as wheeld_core/control/time_namespace.py says it. */
static void write_time(char *out, size_t size)
{
    struct stat own, children;
    char offsets[160] = "", text[256], *word, *rest;
    FILE *file = fopen("/proc/self/timens_offsets", "re");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[n] = '\0';
    snprintf(out, size, "null");
    if (n == 0 || stat("/proc/self/ns/time", &own) < 0 ||
        stat("/proc/self/ns/time_for_children", &children) < 0)
        return; /* a kernel without them has one time for all */
    for (word = strtok_r(text, " \t\n", &rest); word; word = strtok_r(NULL, " \t\n", &rest)) {
        size_t used = strlen(offsets);
        snprintf(offsets + used, sizeof offsets - used, "%s%s", used ? " " : "", word);
    }
    const char *quote = own.st_ino == children.st_ino ? "\"" : "";
    snprintf(out, size, "[%llu,%s%s%s]", (unsigned long long)own.st_ino, quote,
             *quote ? offsets : "null", quote);
}

void write_kin(char *out, size_t size)
{
    char time[224];
    write_time(time, sizeof time);
    snprintf(out, size, "\"layout\":%d,\"fingerprint\":\"%016llx\",\"time\":%s", WH_LAYOUT_VERSION,
             (unsigned long long)wh_fingerprint(), time);
}
