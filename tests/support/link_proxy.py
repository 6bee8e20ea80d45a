#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A bad network between two network cards: it forwards Ethernet frames, late, in part, slowly, or not at all.

usage: link_proxy.py CARD_A CARD_B PIPE [SEED]

Frames that arrive at one card leave through the other one. It prints "ready", and what its commands did. Commands are lines
that are written to the named pipe PIPE:

    delay MS      every frame leaves MS milliseconds later
    loss SHARE    this share of the frames is lost, drawn by a generator that begins with SEED
    rate MBIT     each direction carries MBIT million bits a second; 0: without limit
    cut           no frame is forwarded
    join          frames are forwarded again
    reset BYTES   the connection of the next TCP segment of at least BYTES bytes is reset: a forged segment follows it;
                  0 takes the command back
    count         prints how many frames came, were lost, and which connections were reset

A frame here may be what the kernel hands over before it is cut into segments and has its checksum (PACKET_VNET_HDR), so that
a rate of hundreds of MB/s is possible.
"""
import heapq
import os
import random
import select
import socket
import struct
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
ETH_P_ALL, ETH_P_IP = 3, 0x0800
SO_RCVBUFFORCE = 33
VNET_HEADER = 10  # bytes before each frame
MOST_BYTES = 1 << 18
RESET_SECONDS = 1.0  # for so long each segment of a connection is followed by a forged one
RST = 4


def packet_socket(card):
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    out.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    out.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    out.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    out.bind((card, ETH_P_ALL))
    out.setblocking(False)
    return out


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Segment:
    """The TCP segment in a frame; `payload` is 0 for frames without one."""

    def __init__(self, frame):
        self.frame = frame[VNET_HEADER:]
        self.payload = 0
        if len(self.frame) < 54 or struct.unpack_from("!H", self.frame, 12)[0] != ETH_P_IP or self.frame[23] != 6:
            return
        tcp = 14 + 4 * (self.frame[14] & 15)
        self.payload = struct.unpack_from("!H", self.frame, 16)[0] + 14 - tcp - 4 * (self.frame[tcp + 12] >> 4)
        self.source, self.target = self.frame[26:30], self.frame[30:34]
        self.ports = struct.unpack_from("!HH", self.frame, tcp)
        self.next = (struct.unpack_from("!I", self.frame, tcp + 4)[0] + self.payload) & 0xFFFFFFFF
        self.ends = frozenset([(self.source, self.ports[0]), (self.target, self.ports[1])])

    def name(self):
        return f"{socket.inet_ntoa(self.source)}:{self.ports[0]} -> {socket.inet_ntoa(self.target)}:{self.ports[1]}"

    def reset(self):
        """A frame that resets the receiver, which expects the byte after this segment next."""
        tcp = struct.pack("!HHIIBBHHH", *self.ports, self.next, 0, 5 << 4, RST, 0, 0, 0)
        pseudo = self.source + self.target + struct.pack("!HH", 6, len(tcp))
        tcp = tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + self.source + self.target
        ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
        return bytes(VNET_HEADER) + self.frame[:14] + ip + tcp


class Proxy:
    def __init__(self, cards, seed):
        self.cards = [packet_socket(card) for card in cards]
        self.random = random.Random(seed)
        self.delay = self.loss = self.rate = 0.0
        self.joined = True
        self.least = None  # bytes of the segment whose connection is to be reset
        self.resets = {}  # ends of a connection -> until when it is reset
        self.waiting = []  # (time, number, card, frame)
        self.free = [0.0, 0.0]  # when each direction has sent what came before
        self.frames = self.lost = self.reset_connections = 0

    def command(self, words):
        name, value = words[0], float(words[1]) if len(words) > 1 else 0.0
        if name == "delay":
            self.delay = value / 1e3
        elif name == "loss":
            self.loss = value
        elif name == "rate":
            self.rate = value * 1e6 / 8
        elif name in ("cut", "join"):
            self.joined = name == "join"
        elif name == "reset":
            self.least = int(value) or None
        elif name == "count":
            print(f"frames {self.frames}, lost {self.lost}, connections reset {self.reset_connections}", flush=True)
        else:
            print(f"no such command: {' '.join(words)}", flush=True)

    def arrive(self, target, frame, now):
        self.frames += 1
        if not self.joined or self.random.random() < self.loss:
            self.lost += 1
            return
        sent = now
        if self.rate:
            sent = self.free[target] = max(self.free[target], now) + len(frame) / self.rate
        heapq.heappush(self.waiting, (sent + self.delay, self.frames, target, frame))

    def leave(self, target, frame, now):
        self.send(target, frame)
        if self.least is None and not self.resets:
            return
        segment = Segment(frame)
        if segment.payload < 1:
            return
        if self.least is not None and segment.payload >= self.least:
            self.least = None
            self.resets[segment.ends] = now + RESET_SECONDS
            self.reset_connections += 1
            print(f"reset {segment.name()}", flush=True)
        if segment.ends in self.resets:
            self.send(target, segment.reset())
            self.resets = {ends: until for ends, until in self.resets.items() if until > now}

    def send(self, target, frame):
        try:
            self.cards[target].send(frame)
        except OSError:  # the card is down or its queue is full
            self.lost += 1

    def run(self, pipe):
        rest = b""
        while True:
            wait = max(0.0, self.waiting[0][0] - time.monotonic()) if self.waiting else None
            ready, _, _ = select.select([pipe, *self.cards], [], [], wait)
            if pipe in ready:
                *lines, rest = (rest + os.read(pipe, 4096)).split(b"\n")
                for line in lines:
                    if line.split():
                        self.command(line.decode().split())
            now = time.monotonic()
            for i, card in enumerate(self.cards):
                if card in ready:
                    try:
                        self.arrive(1 - i, card.recv(MOST_BYTES), now)
                    except OSError:  # the card went down
                        pass
            while self.waiting and self.waiting[0][0] <= now:
                _, _, target, frame = heapq.heappop(self.waiting)
                self.leave(target, frame, now)


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit("usage: link_proxy.py CARD_A CARD_B PIPE [SEED]")
    proxy = Proxy(sys.argv[1:3], int(sys.argv[4]) if len(sys.argv) == 5 else 1)
    pipe = os.open(sys.argv[3], os.O_RDWR | os.O_NONBLOCK)  # open for writing as well: it never ends
    print("ready", flush=True)
    proxy.run(pipe)


if __name__ == "__main__":
    main()
