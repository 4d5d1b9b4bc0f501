/* SPDX-License-Identifier: Apache-2.0 */
/* The members of the job, and the orders of rank 0.
**
** Keys of the store:
**
**   rank/R     who R is ("WORLD_SIZE NODE")
**   clash      the message about a process that cannot be taken in
**   order/N    what rank 0 wants: "run RUN HUB", at the end "exit CODE"
**   left/R     R knows that this is the end
**
** Below run/N ranks meet for the Nth run. In a directory (file://) ranks find only where that store
** is, and a secret that is made for the job.
**
** Not here: which rank this is, and where rank 0 is (join_read.c).
*/
#define _POSIX_C_SOURCE 200809L
#include "verify/worlds/join.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/rank_list.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLICE_NS UINT64_C(200000000)    /* between two looks at Ctrl-C */
#define BRIEFLY_NS UINT64_C(1000000)    /* for a key that is there, or not */
#define STORE_NS UINT64_C(10000000000)  /* for an answer of the store */
#define LEAVE_NS UINT64_C(1000000000)   /* for the others to hear how it ended */
#define PERSIST_NS UINT64_C(5000000000) /* for rank 0 to do something about Ctrl-C */
#define NODE_BYTES 96
#define DIRECTORY_KEY "job"

/* ---- the store ---- */

void cd_join_make_url(cd_join *j)
{
    bool brackets = strchr(j->host, ':') != NULL;
    snprintf(j->url, sizeof j->url, "tcp://%s%s%s:%u", brackets ? "[" : "", j->host,
             brackets ? "]" : "", (unsigned)j->port);
}

static cddp_status open_store(const cd_join *j, uint64_t timeout_ns, cddp_rendezvous **store,
                              cddp_error *err)
{
    const cddp_rendezvous_options options = {.size = sizeof options,
                                             .url = j->url,
                                             .secret = j->secret[0] != '\0' ? j->secret : NULL,
                                             .timeout_ns = timeout_ns};
    CD_TRY(cddp_rendezvous_open(&options, store, err));
    return CDDP_OK;
}

static void report_dropped(void *context, const char *peer, const char *reason)
{
    (void)context;
    fprintf(stderr, "cddp-verify: turned %s away from the store of rank 0: %s\n", peer, reason);
}

/* The first message of the process that serves. */
typedef struct served {
    cddp_status status;
    uint16_t port;
    char message[CDDP_ERROR_MESSAGE_BYTES];
} served;

static void serve_in_child(const cd_join *j, int64_t judge, int fd)
{
    cddp_error error = CDDP_ERROR_INIT;
    cddp_rendezvous_server *server = NULL;
    served words;
    const cddp_rendezvous_server_options options = {.size = sizeof options,
                                                    .host = j->host,
                                                    .port = j->port,
                                                    .secret =
                                                        j->secret[0] != '\0' ? j->secret : NULL,
                                                    .dropped = report_dropped};
    signal(SIGINT, SIG_IGN); /* the judge decides when it ends */
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    memset(&words, 0, sizeof words); /* padding travels too */
    words.status = cddp_rendezvous_server_open(&options, &server, &error);
    if (words.status == CDDP_OK) words.port = cddp_rendezvous_server_port(server);
    snprintf(words.message, sizeof words.message, "%s", error.message);
    if (cd_os_write_all(fd, &words, sizeof words, NULL) != CDDP_OK) words.status = CDDP_E_IO;
    close(fd);
    while (words.status == CDDP_OK && getppid() == (pid_t)judge) cd_os_sleep_ns(SLICE_NS);
    cddp_rendezvous_server_close(server);
    _exit(0);
}

/* In a separate process: this one forks its rank, which a process with threads should not do. */
static cddp_status serve(cd_join *j, cddp_error *err)
{
    int ends[2] = {-1, -1};
    const int64_t judge = getpid();
    served words = {.status = CDDP_E_IO};
    size_t used = 0;
    cddp_status status = CDDP_OK;
    if (pipe(ends) != 0)
        return cd_fail(err, CDDP_E_NOMEM, "cannot make a pipe: %s", strerror(errno));
    status = cd_os_fork(&j->server, err);
    if (status == CDDP_OK && j->server == 0) serve_in_child(j, judge, ends[1]);
    close(ends[1]);
    for (ssize_t n = 1; status == CDDP_OK && used < sizeof words && n != 0;) {
        n = read(ends[0], (char *)&words + used, sizeof words - used);
        if (n < 0 && errno != EINTR) break;
        if (n > 0) used += (size_t)n;
    }
    close(ends[0]);
    if (status != CDDP_OK) return status;
    if (used < sizeof words)
        return cd_fail(err, CDDP_E_BACKEND, "the process that serves the store for the ranks died");
    if (words.status != CDDP_OK)
        return cd_fail(err, CDDP_E_BACKEND,
                       "rank 0 %.180s (is this host the one that others call rank 0's, and this "
                       "the only rank 0?)",
                       words.message);
    j->port = words.port;
    cd_join_make_url(j);
    return CDDP_OK;
}

/* ---- the directory of file:// ---- */

static cddp_status open_directory(const cd_join *j, cddp_rendezvous **directory, cddp_error *err)
{
    char url[sizeof j->directory + 8];
    snprintf(url, sizeof url, "file://%s", j->directory);
    const cddp_rendezvous_options options = {.size = sizeof options,
                                             .url = url,
                                             .timeout_ns = SLICE_NS};
    CD_TRY(cddp_rendezvous_open(&options, directory, err));
    return CDDP_OK;
}

/* "URL SECRET", or "URL -" where every rank was given the secret. */
static cddp_status read_entry(cd_join *j, cddp_rendezvous *directory, char *entry,
                              size_t entry_bytes, cddp_error *err)
{
    char secret[sizeof j->secret];
    size_t bytes = entry_bytes - 1;
    CD_TRY(directory->get(directory->self, DIRECTORY_KEY, BRIEFLY_NS, entry, &bytes, err));
    entry[bytes] = '\0';
    if (sscanf(entry, "%239s %71s", j->url, secret) != 2)
        return cd_fail(err, CDDP_E_CORRUPT, "the directory %.100s does not say where rank 0 is",
                       j->directory);
    if (!j->has_own_secret)
        snprintf(j->secret, sizeof j->secret, "%s", strcmp(secret, "-") != 0 ? secret : "");
    return CDDP_OK;
}

static cddp_status make_secret(cd_join *j, cddp_error *err)
{
    unsigned char bytes[16];
    int fd = j->has_own_secret ? -1 : open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (j->has_own_secret) return CDDP_OK;
    ssize_t n = fd >= 0 ? read(fd, bytes, sizeof bytes) : -1;
    if (fd >= 0) close(fd);
    if (n != (ssize_t)sizeof bytes)
        return cd_fail(err, CDDP_E_IO, "cannot make a secret from /dev/urandom");
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(j->secret + 2 * i, 3, "%02x", bytes[i]);
    return CDDP_OK;
}

/* Rank 0 says where it is, unless another rank 0 lives there. What an earlier job left behind is
** replaced. */
static cddp_status publish(cd_join *j, cddp_error *err)
{
    cd_join earlier = *j;
    cddp_rendezvous *directory = NULL, *other = NULL;
    char mine[sizeof j->url + sizeof j->secret + 4], old[sizeof mine];
    bool swapped = false;
    cddp_status status = CDDP_OK;
    snprintf(mine, sizeof mine, "%s %s", j->url, j->has_own_secret ? "-" : j->secret);
    CD_TRY(open_directory(j, &directory, err));
    CD_TRY_OUT(
        directory->compare_and_set(directory->self, DIRECTORY_KEY, NULL, mine, &swapped, err));
    if (swapped) goto out;
    if (read_entry(&earlier, directory, old, sizeof old, NULL) == CDDP_OK &&
        open_store(&earlier, SLICE_NS, &other, NULL) == CDDP_OK)
        status = cd_fail(err, CDDP_E_CONFIG, "another process is rank 0 of the job in %.150s",
                         j->directory);
    cddp_rendezvous_close(other);
    if (status == CDDP_OK)
        status = directory->set(directory->self, DIRECTORY_KEY, mine, strlen(mine), err);
out:
    j->is_published = status == CDDP_OK;
    cddp_rendezvous_close(directory);
    return status;
}

static void unpublish(const cd_join *j)
{
    cddp_rendezvous *directory = NULL;
    if (open_directory(j, &directory, NULL) != CDDP_OK) return;
    (void)directory->remove(directory->self, DIRECTORY_KEY,
                            NULL); /* what stays behind is replaced by the next rank 0 */
    cddp_rendezvous_close(directory);
}

/* ---- who is here ---- */

static bool is_interrupted(const cd_join_waiting *waiting)
{
    return waiting->interrupted != NULL && waiting->interrupted();
}

static void key_of(char key[48], const char *kind, uint64_t number)
{
    snprintf(key, 48, "%s/%" PRIu64, kind, number);
}

/* Waits at most timeout_ns; text is terminated. */
static cddp_status get_text(const cd_join *j, const char *key, uint64_t timeout_ns, char *text,
                            size_t text_bytes, cddp_error *err)
{
    size_t bytes = text_bytes - 1;
    CD_TRY(j->store->get(j->store->self, key, timeout_ns, text, &bytes, err));
    text[bytes] = '\0';
    return CDDP_OK;
}

static void read_line(const char *path, char *text, size_t text_bytes)
{
    FILE *f = fopen(path, "r");
    if (f == NULL || fgets(text, (int)text_bytes, f) == NULL) text[0] = '\0';
    if (f != NULL) fclose(f);
    text[strcspn(text, "\n")] = '\0';
}

/* Two processes of one node differ by their process numbers, which mean the same to both; "?" where
** they do not. */
static void node_of(char node[NODE_BYTES])
{
    char boot[40], space[48];
    read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    space[length > 0 ? length : 0] = '\0';
    snprintf(node, NODE_BYTES, "%s%s%s", boot[0] != '\0' && length > 0 ? boot : "?",
             length > 0 ? "/" : "", length > 0 ? space : "");
}

/* Ranks above 0 find the store; until its host has a name and serves it, they try again. */
static cddp_status reach(cd_join *j, const cd_join_waiting *waiting, cddp_error *err)
{
    const uint64_t deadline = cd_os_now_ns() + waiting->patience_ns;
    cddp_error last = CDDP_ERROR_INIT;
    for (;;) {
        cddp_rendezvous *directory = NULL;
        char entry[sizeof j->url + sizeof j->secret + 4];
        cddp_status status =
            j->directory[0] != '\0' ? open_directory(j, &directory, &last) : CDDP_OK;
        if (status == CDDP_OK && directory != NULL)
            status = read_entry(j, directory, entry, sizeof entry, &last);
        cddp_rendezvous_close(directory);
        if (status == CDDP_OK) status = open_store(j, SLICE_NS * 5, &j->store, &last);
        if (status == CDDP_OK) break;
        bool may_come =
            status == CDDP_E_TIMEOUT || status == CDDP_E_CONFIG || j->directory[0] != '\0';
        if (!may_come)
            return cd_fail(err, CDDP_E_BACKEND, "rank %u: %.200s", j->rank, last.message);
        if (is_interrupted(waiting))
            return cd_fail(err, CDDP_E_ABORTED, "interrupted while rank %u waited for rank 0",
                           j->rank);
        if (cd_os_now_ns() >= deadline)
            return cd_fail(err, CDDP_E_BACKEND, "rank %u waited %.0f s for rank 0: %.160s", j->rank,
                           (double)waiting->patience_ns / 1e9, last.message);
        cd_os_sleep_ns(SLICE_NS / 4);
    }
    cddp_rendezvous_close(j->store);
    j->store = NULL;
    CD_TRY(open_store(j, STORE_NS, &j->store, err));
    return CDDP_OK;
}

/* A rank that cannot be taken reports the reason to rank 0, and prints it itself. */
static cddp_status clash(const cd_join *j, cddp_error *err, const char *words)
{
    (void)j->store->set(j->store->self, "clash", words, strlen(words),
                        NULL); /* else rank 0 misses a rank, and says that */
    return cd_fail(err, CDDP_E_CONFIG, "%s", words);
}

static cddp_status enter(const cd_join *j, uint64_t patience_ns, cddp_error *err)
{
    char node[NODE_BYTES], text[NODE_BYTES + 16], key[48], words[200];
    bool swapped = false;
    uint32_t world_size = j->world_size;
    if (j->rank > 0) {
        CD_TRY(get_text(j, "rank/0", patience_ns, text, sizeof text, err));
        world_size = (uint32_t)strtoul(text, NULL, 10);
    }
    if (world_size != j->world_size) {
        snprintf(words, sizeof words, "rank %u was started for %u ranks, rank 0 for %u (%.40s)",
                 j->rank, j->world_size, world_size, j->variables);
        return clash(j, err, words);
    }
    node_of(node);
    snprintf(text, sizeof text, "%u %s", j->world_size, node);
    key_of(key, "rank", j->rank);
    CD_TRY(j->store->compare_and_set(j->store->self, key, NULL, text, &swapped, err));
    if (swapped) return CDDP_OK;
    snprintf(words, sizeof words, "two processes were started as rank %u (%.40s)", j->rank,
             j->variables);
    return clash(j, err, words);
}

static cddp_status say_missing(const cd_join *j, uint32_t first, uint64_t patience_ns,
                               cddp_error *err)
{
    char list[120], key[48], text[NODE_BYTES + 16];
    uint32_t *missing = cd_allocate_array(NULL, j->world_size, sizeof *missing);
    cd_rank_array ranks = {.items = missing};
    if (missing == NULL) return cd_fail_memory(err, "%u ranks", j->world_size);
    for (uint32_t r = first; r < j->world_size; r++) {
        key_of(key, "rank", r);
        if (get_text(j, key, BRIEFLY_NS, text, sizeof text, NULL) != CDDP_OK)
            missing[ranks.count++] = r;
    }
    cd_rank_list_print(&(cd_rank_list){&ranks, cd_rank_array_next}, CD_NO_RANK, list, sizeof list);
    cd_release(NULL, missing, j->world_size * sizeof *missing);
    return cd_fail(err, CDDP_E_BACKEND, "%s of %u did not come within %.0f s to %.60s", list,
                   j->world_size, (double)patience_ns / 1e9,
                   j->directory[0] != '\0' ? j->directory : j->url);
}

/* Rank 0 waits for all others. */
static cddp_status gather(cd_join *j, const cd_join_waiting *waiting, cddp_error *err)
{
    const uint64_t deadline = cd_os_now_ns() + waiting->patience_ns;
    char node[NODE_BYTES], key[48], text[CDDP_ERROR_MESSAGE_BYTES];
    node_of(node);
    j->one_host = node[0] != '?';
    for (uint32_t r = 1; r < j->world_size;) {
        key_of(key, "rank", r);
        cddp_status status = get_text(j, key, SLICE_NS, text, sizeof text, err);
        if (status == CDDP_OK) {
            const char *space = strchr(text, ' ');
            if (space == NULL || strcmp(space + 1, node) != 0) j->one_host = false;
            r++;
            continue;
        }
        if (status != CDDP_E_TIMEOUT) return status;
        if (get_text(j, "clash", BRIEFLY_NS, text, sizeof text, NULL) == CDDP_OK)
            return cd_fail(err, CDDP_E_CONFIG, "%.200s", text);
        if (is_interrupted(waiting))
            return cd_fail(err, CDDP_E_ABORTED, "interrupted while rank 0 waited for rank %u", r);
        if (cd_os_now_ns() >= deadline)
            return CD_PASS(say_missing(j, r, waiting->patience_ns, err));
    }
    if (get_text(j, "clash", BRIEFLY_NS, text, sizeof text, NULL) == CDDP_OK)
        return cd_fail(err, CDDP_E_CONFIG, "%.200s", text);
    return CDDP_OK;
}

cddp_status cd_join_begin(cd_join *j, const cd_join_waiting *waiting, cddp_error *err)
{
    if (j->rank > 0) {
        CD_TRY(reach(j, waiting, err));
        CD_TRY(enter(j, waiting->patience_ns, err));
        return CDDP_OK;
    }
    if (j->directory[0] != '\0') CD_TRY(make_secret(j, err));
    CD_TRY(serve(j, err));
    CD_TRY(open_store(j, STORE_NS, &j->store, err));
    CD_TRY(enter(j, waiting->patience_ns, err));
    if (j->directory[0] != '\0') CD_TRY(publish(j, err));
    CD_TRY(gather(j, waiting, err));
    return CDDP_OK;
}

/* ---- orders ---- */

cddp_status cd_join_announce(const cd_join *j, uint64_t run, const char *address, cddp_error *err)
{
    cddp_rendezvous *store = NULL;
    char key[48], text[CDDP_PROCESS_ADDRESS_BYTES + 32];
    key_of(key, "order", j->order);
    snprintf(text, sizeof text, "run %" PRIu64 " %s", run, address);
    CD_TRY(open_store(j, STORE_NS, &store, err));
    cddp_status status = store->set(store->self, key, text, strlen(text), err);
    cddp_rendezvous_close(store);
    return status;
}

/* The rank of the order before: it has ended, or there is no more use for it. */
static void end_rank(int64_t *rank)
{
    if (*rank > 0) {
        kill((pid_t)*rank, SIGKILL);
        while (waitpid((pid_t)*rank, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    *rank = 0;
}

static bool read_order(const char *text, cd_join_order *order)
{
    *order = (cd_join_order){.exit_code = 0};
    if (sscanf(text, "exit %d", &order->exit_code) == 1) return true;
    order->is_rank = sscanf(text, "run %" SCNu64 " %159s", &order->run, order->hub) == 2;
    return order->is_rank;
}

static cddp_status await_order(cd_join *j, const cd_join_waiting *waiting, int64_t *rank,
                               cd_join_order *order, cddp_error *err)
{
    char key[48], text[CDDP_PROCESS_ADDRESS_BYTES + 32];
    uint64_t since_ns = 0;
    cddp_status status = CDDP_E_TIMEOUT;
    key_of(key, "order", j->order + 1);
    while (status == CDDP_E_TIMEOUT) {
        cddp_error gone = CDDP_ERROR_INIT;
        int64_t sum = 0;
        if (j->store->add(j->store->self, "alive", 0, &sum, &gone) == CDDP_OK)
            status = get_text(j, key, 5 * SLICE_NS, text, sizeof text, &gone);
        else
            status = CDDP_E_BACKEND;
        if (status != CDDP_OK && status != CDDP_E_TIMEOUT)
            return cd_fail(err, CDDP_E_BACKEND, "rank %u: rank 0 is gone (%.160s)", j->rank,
                           gone.message);
        if (since_ns == 0 && is_interrupted(waiting)) since_ns = cd_os_now_ns();
        if (status != CDDP_OK && since_ns != 0 && cd_os_now_ns() - since_ns > PERSIST_NS)
            return cd_fail(err, CDDP_E_ABORTED, "rank %u was interrupted, rank 0 was not", j->rank);
        if (*rank > 0 && waitpid((pid_t)*rank, NULL, WNOHANG) == (pid_t)*rank) *rank = 0;
    }
    if (!read_order(text, order))
        return cd_fail(err, CDDP_E_CORRUPT,
                       "rank 0 gives an order that rank %u does not understand", j->rank);
    j->order++;
    return CDDP_OK;
}

cddp_status cd_join_follow(cd_join *j, const cd_join_waiting *waiting, cd_join_order *order,
                           cddp_error *err)
{
    int64_t rank = 0;
    cddp_status status = CDDP_OK;
    char key[48];
    for (;;) {
        status = await_order(j, waiting, &rank, order, err);
        end_rank(&rank);
        if (status != CDDP_OK) return status;
        if (!order->is_rank) break;
        CD_TRY(cd_os_fork(&rank, err));
        if (rank > 0) continue;
        cddp_rendezvous_close(j->store); /* it is our parent's */
        j->store = NULL;
        return CDDP_OK;
    }
    key_of(key, "left", j->rank);
    /* rank 0 does not wait for it for long */
    (void)j->store->set(j->store->self, key, "1", 1, NULL);
    return CDDP_OK;
}

/* Every order that nobody gave is the last one, so that nobody waits for it. */
static void say_end(const cd_join *j, int exit_code)
{
    char key[48], text[32];
    const uint64_t deadline = cd_os_now_ns() + LEAVE_NS;
    bool swapped = false;
    snprintf(text, sizeof text, "exit %d", exit_code);
    for (uint64_t i = 1; i <= j->order + 1; i++) {
        key_of(key, "order", i);
        if (j->store->compare_and_set(j->store->self, key, NULL, text, &swapped, NULL) != CDDP_OK)
            return;
    }
    for (uint32_t r = 1; r < j->world_size; r++) {
        uint64_t now = cd_os_now_ns();
        key_of(key, "left", r);
        if (get_text(j, key, now < deadline ? deadline - now : BRIEFLY_NS, text, sizeof text,
                     NULL) != CDDP_OK)
            continue;
    }
}

void cd_join_end(cd_join *j, int exit_code)
{
    if (j->rank == 0 && j->store != NULL) say_end(j, exit_code);
    if (j->is_published) unpublish(j);
    cddp_rendezvous_close(j->store);
    j->store = NULL;
    end_rank(&j->server);
}
