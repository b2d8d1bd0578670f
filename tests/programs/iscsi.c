/*
 * An initiator: writes a file to a logical unit from its first block on, reads it back into another, in pieces of many blocks.
 *
 *   iscsi URL FILE COPY
 */
#include <fcntl.h>
#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 512
#define PIECE (256 * 1024)

static struct iscsi_context *iscsi;

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, iscsi ? iscsi_get_error(iscsi) : "no context");
    exit(1);
}

static struct scsi_task *good(struct scsi_task *task, const char *what)
{
    if (!task || task->status != SCSI_STATUS_GOOD)
        fail(what);
    return task;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: iscsi URL FILE COPY\n");
        return 2;
    }
    iscsi = iscsi_create_context("iqn.2026-01.org.millrace:initiator");
    struct iscsi_url *url = iscsi ? iscsi_parse_full_url(iscsi, argv[1]) : NULL;
    if (!url)
        fail("url");
    iscsi_set_targetname(iscsi, url->target);
    iscsi_set_session_type(iscsi, ISCSI_SESSION_NORMAL);
    /* A checksum over each header, computed by one program and compared by the other. */
    iscsi_set_header_digest(iscsi, ISCSI_HEADER_DIGEST_CRC32C);
    if (iscsi_full_connect_sync(iscsi, url->portal, url->lun) != 0)
        fail("connect");
    int in = open(argv[2], O_RDONLY), out = open(argv[3], O_WRONLY | O_CREAT | O_TRUNC, 0644);
    struct stat about;
    if (in < 0 || out < 0 || fstat(in, &about) != 0 || about.st_size % PIECE != 0) {
        fprintf(stderr, "files of whole pieces\n");
        return 1;
    }
    static unsigned char piece[PIECE];
    uint32_t pieces = about.st_size / PIECE, blocks = PIECE / BLOCK;
    for (uint32_t at = 0; at < pieces; at++) {
        if (read(in, piece, PIECE) != PIECE)
            fail("read");
        scsi_free_scsi_task(good(
            iscsi_write10_sync(iscsi, url->lun, at * blocks, piece, PIECE, BLOCK, 0, 0, 0, 0, 0), "write"));
    }
    for (uint32_t at = 0; at < pieces; at++) {
        struct scsi_task *task =
            good(iscsi_read10_sync(iscsi, url->lun, at * blocks, PIECE, BLOCK, 0, 0, 0, 0, 0), "read");
        if (task->datain.size != PIECE || write(out, task->datain.data, PIECE) != PIECE)
            fail("copy");
        scsi_free_scsi_task(task);
    }
    if (iscsi_logout_sync(iscsi) != 0)
        fail("logout");
    iscsi_destroy_url(url);
    iscsi_destroy_context(iscsi);
    printf("%u pieces\n", pieces);
    return 0;
}
