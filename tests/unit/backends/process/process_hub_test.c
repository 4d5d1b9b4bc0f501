/* SPDX-License-Identifier: Apache-2.0 */
/* The hub against ranks that say who they are, and against strangers. */
#define _POSIX_C_SOURCE 200809L
#include "backends/process/process_hub.h"

#include "backends/rendezvous/tcp.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_NS UINT64_C(5000000000)

static cd_process_hub *hub_open(void)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_process_hub *hub = NULL;
    assert_ok(cd_process_hub_open("127.0.0.1", &hub, &err), &err);
    return hub;
}

/* The next hello, within five seconds; false when none came, or as soon as one more connection was
** dropped. */
static bool take(cd_process_hub *hub, cd_process_hello *hello, int *fd)
{
    cddp_error err = CDDP_ERROR_INIT;
    uint64_t until = cd_os_now_ns() + PATIENCE_NS;
    uint32_t dropped = cd_process_hub_dropped_count(hub);
    bool found = false;
    while (!found && cd_os_now_ns() < until && cd_process_hub_dropped_count(hub) == dropped) {
        assert_ok(cd_process_hub_take(hub, hello, fd, &found, &err), &err);
        if (!found) cd_os_sleep_ns(1000000);
    }
    return found;
}

/* A connection to the hub by somebody who says these bytes and no more. */
static int stranger(const cd_process_hub *hub, const void *bytes, size_t byte_count)
{
    cddp_error err = CDDP_ERROR_INIT;
    int fd = -1;
    const char *colon = strrchr(cd_process_hub_address(hub), ':');
    uint16_t port = (uint16_t)strtoul(colon + 1, NULL, 10);
    assert_ok(cd_tcp_connect("127.0.0.1", port, cd_os_now_ns() + PATIENCE_NS, &fd, &err), &err);
    assert_ok(cd_tcp_write(fd, bytes, byte_count, cd_os_now_ns() + PATIENCE_NS, &err), &err);
    shutdown(fd, SHUT_WR);
    return fd;
}

TEST(process_hub, it_answers_as_long_as_it_is_open_and_takes_nobody_who_only_asks)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_process_hub *hub = hub_open();
    cd_process_hello hello = {0};
    char address[CD_PROCESS_HUB_ADDRESS_BYTES];
    int fd = -1;
    bool found = true;
    snprintf(address, sizeof address, "%s", cd_process_hub_address(hub));
    assert_true(cd_process_hub_answers(address));
    while (cd_process_hub_dropped_count(hub) < 1) {
        assert_ok(cd_process_hub_take(hub, &hello, &fd, &found, &err), &err);
        assert_false(found);
    }
    cd_process_hub_close(hub);
    assert_false(cd_process_hub_answers(address));
    assert_false(cd_process_hub_answers("nobody"));
    /* Nor does a rank wait for one that has gone: whoever started it may be waiting for the
    ** rank. */
    const cd_process_hello who = {.world_size = 1};
    const uint64_t before = cd_os_now_ns();
    int fds[CD_OS_PIPE_COUNT];
    assert_fails(cd_process_hub_join(address, &who, 2 * PATIENCE_NS, fds, &err), CDDP_E_TIMEOUT,
                 &err, "cannot reach");
    assert_true(cd_os_now_ns() - before < PATIENCE_NS);
}

TEST(process_hub, a_rank_arrives_with_its_three_streams)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_process_hub *hub = hub_open();
    const cd_process_hello who = {.rank = 2, .world_size = 5, .process = 77};
    int fds[CD_OS_PIPE_COUNT], fd = -1;
    uint32_t seen = 0;
    char byte = 0;
    assert_ok(cd_process_hub_join(cd_process_hub_address(hub), &who, PATIENCE_NS, fds, &err), &err);
    for (int i = 0; i < CD_OS_PIPE_COUNT; i++) {
        cd_process_hello hello = {0};
        assert_true(take(hub, &hello, &fd));
        assert_int_equal(hello.rank, 2);
        assert_int_equal(hello.world_size, 5);
        assert_int_equal(hello.process, 77);
        seen |= 1u << hello.pipe;
        assert_int_equal(write(fds[hello.pipe], "x", 1), 1);
        assert_ok(cd_tcp_read(fd, &byte, 1, cd_os_now_ns() + PATIENCE_NS, &err), &err);
        assert_int_equal(byte, 'x');
        close(fd);
        close(fds[hello.pipe]);
    }
    assert_int_equal(seen, 7);
    assert_int_equal(cd_process_hub_dropped_count(hub), 0);
    cd_process_hub_close(hub);
}

TEST(process_hub, whoever_does_not_know_the_secret_is_dropped)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_process_hub *hub = hub_open();
    const cd_process_hello who = {.rank = 0, .world_size = 1};
    char address[CD_PROCESS_HUB_ADDRESS_BYTES];
    int fds[CD_OS_PIPE_COUNT], fd = -1;
    cd_process_hello hello;
    snprintf(address, sizeof address, "%s", cd_process_hub_address(hub));
    char *last = address + strlen(address) - 1;
    *last = *last == '0' ? '1' : '0';
    assert_ok(cd_process_hub_join(address, &who, PATIENCE_NS, fds, &err), &err);
    while (cd_process_hub_dropped_count(hub) < CD_OS_PIPE_COUNT)
        assert_false(take(hub, &hello, &fd));
    for (int i = 0; i < CD_OS_PIPE_COUNT; i++) close(fds[i]);
    assert_int_equal(cd_process_hub_dropped_count(hub), CD_OS_PIPE_COUNT);
    cd_process_hub_close(hub);
}

TEST(process_hub, noise_and_half_a_hello_are_dropped_and_others_still_arrive)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_process_hub *hub = hub_open();
    const cd_process_hello who = {.rank = 1, .world_size = 2};
    char noise[512];
    int fds[CD_OS_PIPE_COUNT], fd = -1;
    cd_process_hello hello;
    memset(noise, 'G', sizeof noise);
    int loud = stranger(hub, noise, sizeof noise), short_one = stranger(hub, noise, 3),
        silent = stranger(hub, noise, 0);
    while (cd_process_hub_dropped_count(hub) < 3) assert_false(take(hub, &hello, &fd));
    assert_int_equal(cd_process_hub_dropped_count(hub), 3);
    assert_ok(cd_process_hub_join(cd_process_hub_address(hub), &who, PATIENCE_NS, fds, &err), &err);
    for (int i = 0; i < CD_OS_PIPE_COUNT; i++) {
        assert_true(take(hub, &hello, &fd));
        close(fd);
        close(fds[i]);
    }
    close(loud);
    close(short_one);
    close(silent);
    cd_process_hub_close(hub);
}

TEST(process_hub, what_is_no_address_is_refused)
{
    static const char *const wrong[] = {"",
                                        "127.0.0.1",
                                        "127.0.0.1:5",
                                        "127.0.0.1:5/00",
                                        "127.0.0.1:0/00112233445566778899aabbccddeeff",
                                        "127.0.0.1:99999/00112233445566778899aabbccddeeff",
                                        "/00112233445566778899aabbccddeeff",
                                        "127.0.0.1:5/zz112233445566778899aabbccddeeff"};
    const cd_process_hello who = {.world_size = 1};
    int fds[CD_OS_PIPE_COUNT];
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        assert_int_equal(cd_process_hub_join(wrong[i], &who, PATIENCE_NS, fds, &err),
                         CDDP_E_CONFIG);
        assert_int_equal(fds[0], -1);
    }
}

TEST_MAIN()
