/*
 * A server on libevent's buffered events: every connection gets back what it sends.
 *
 *   libevent ADDRESS PORT
 */
#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void on_read(struct bufferevent *connection, void *unused)
{
    (void)unused;
    evbuffer_add_buffer(bufferevent_get_output(connection), bufferevent_get_input(connection));
}

static void on_written(struct bufferevent *connection, void *unused)
{
    (void)unused;
    bufferevent_free(connection);
}

static void on_event(struct bufferevent *connection, short what, void *unused)
{
    (void)unused;
    if (!(what & (BEV_EVENT_EOF | BEV_EVENT_ERROR)))
        return;
    if ((what & BEV_EVENT_ERROR) || evbuffer_get_length(bufferevent_get_output(connection)) == 0)
        bufferevent_free(connection);
    else
        bufferevent_setcb(connection, NULL, on_written, on_event, NULL);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address, int length, void *base)
{
    (void)listener, (void)address, (void)length;
    struct bufferevent *connection = bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE);
    bufferevent_setcb(connection, on_read, NULL, on_event, NULL);
    bufferevent_enable(connection, EV_READ | EV_WRITE);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: libevent ADDRESS PORT\n");
        return 2;
    }
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[2])) };
    inet_pton(AF_INET, argv[1], &address.sin_addr);
    struct event_base *base = event_base_new();
    struct evconnlistener *listener = evconnlistener_new_bind(
        base, on_accept, base, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE, -1, (struct sockaddr *)&address, sizeof address);
    if (!listener) {
        perror("listen");
        return 1;
    }
    event_base_dispatch(base);
    return 0;
}
