"""Stands between a node and its authority: forwards exchange by exchange, and lies, delays or repeats as a file says.

    between.py ADDRESS FILE     listens on 127.0.0.1:7471, forwards to ADDRESS:7470

FILE holds one word, read at each exchange: plain; old (what was answered long ago); empty (the answer without its
claims); html; huge (a body without end); drip (a byte now and then); storm (each question late by up to 0.4 s and asked
twice, its answer either of the two).
"""
import json, random, re, socket, sys, threading, time

address, word = sys.argv[1:3]
remembered = []


def message(source):
    """One HTTP message, or nothing at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = source.recv(65536)
        if not more:
            return b""
        data += more
    head, body = data.split(b"\r\n\r\n", 1)
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    length = int(length[1]) if length else 0
    while len(body) < length:
        more = source.recv(65536)
        if not more:
            return b""
        body += more
    return head + b"\r\n\r\n" + body


def wrapped(body, kind=b"application/json", length=None):
    return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (kind, length or len(body), body)


def answer(near, question, ask):
    kind = open(word).read()
    if kind == "html":
        return near.sendall(wrapped(b"<html><body>It works!</body></html>", b"text/html"))
    if kind == "huge":
        near.sendall(wrapped(b"", length=1 << 40))
        while True:
            near.sendall(b" " * 65536)
    if kind == "drip":
        near.sendall(wrapped(b"", length=4096))
        while True:
            near.sendall(b" ")
            time.sleep(0.1)
    if kind == "old" and b"/renew" in question and remembered:
        return near.sendall(remembered[0])
    if kind == "storm" and b"/renew" in question:
        time.sleep(random.uniform(0, 0.4))
        return near.sendall(random.choice([ask(question), ask(question)]))
    said = ask(question)
    if b"/renew" in question and b'"domains":[{' in said:
        if kind == "empty":
            body = json.loads(said.split(b"\r\n\r\n", 1)[1])
            body["claims"]["domains"] = []
            return near.sendall(wrapped(json.dumps(body).encode()))
        remembered.append(said)
    near.sendall(said)


def serve(near):
    far = socket.create_connection((address, 7470))
    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(question):
        far.sendall(question)
        said = message(far)
        if not said:
            raise OSError("the authority hung up")
        return said

    try:
        while question := message(near):
            answer(near, question, ask)
    except OSError:
        pass
    near.close()
    far.close()


server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", 7471))
server.listen(16)
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
