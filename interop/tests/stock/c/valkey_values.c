/* A client of a Valkey server over RDMA that uses libvalkey: it sets values of one byte to 32
 * MiB, gets them and compares them. */

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valkey/rdma.h>
#include <valkey/valkey.h>

enum { LARGEST = 32 << 20 };

static void fail(const char *what, size_t len, const valkeyContext *context)
{
    fprintf(stderr, "%s of %zu bytes: %s\n", what, len, context != NULL ? context->errstr : "no context");
    exit(1);
}

/* Fills a buffer with bytes that depend on the seed. */
static void fill(unsigned char *bytes, size_t len, uint64_t seed)
{
    uint64_t state = 0x9E3779B97F4A7C15u ^ seed;
    for (size_t i = 0; i < len; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes[i] = (unsigned char)state;
    }
}

static void set_and_get(valkeyContext *context, unsigned char *value, size_t len, uint64_t seed)
{
    char key[32];
    snprintf(key, sizeof key, "key:%zu", len);
    fill(value, len, seed);
    valkeyReply *reply = valkeyCommand(context, "SET %s %b", key, value, len);
    if (reply == NULL || reply->type != VALKEY_REPLY_STATUS || strcmp(reply->str, "OK") != 0)
        fail("SET", len, context);
    freeReplyObject(reply);
    reply = valkeyCommand(context, "GET %s", key);
    if (reply == NULL || reply->type != VALKEY_REPLY_STRING)
        fail("GET", len, context);
    if (reply->len != len || memcmp(reply->str, value, len) != 0)
        fail("comparison", len, context);
    freeReplyObject(reply);
}

int main(int argc, char **argv)
{
    static const size_t lens[] = {1, 64, 4095, 4096, 65536, 1000003, 1 << 20, (1 << 20) + 1, 8 << 20, LARGEST};
    enum { LENS = sizeof lens / sizeof lens[0], ROUNDS = 3 };

    if (argc != 3) {
        fprintf(stderr, "usage: %s ADDRESS PORT\n", argv[0]);
        return 2;
    }
    if (valkeyInitiateRdma() != VALKEY_OK)
        fail("RDMA", 0, NULL);
    struct timeval limit = {.tv_sec = 60};
    valkeyOptions options = {0};
    VALKEY_OPTIONS_SET_RDMA(&options, argv[1], atoi(argv[2]));
    options.connect_timeout = &limit;
    options.command_timeout = &limit;
    valkeyContext *context = valkeyConnectWithOptions(&options);
    if (context == NULL || context->err)
        fail("connection", 0, context);
    unsigned char *value = malloc(LARGEST);
    if (value == NULL)
        fail("memory", LARGEST, NULL);
    uint64_t bytes = 0;
    for (uint64_t round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < LENS; i++) {
            set_and_get(context, value, lens[i], round);
            bytes += lens[i];
        }
    printf("%d values, %" PRIu64 " bytes, are equal\n", LENS * ROUNDS, bytes);
    free(value);
    valkeyFree(context);
    return 0;
}
