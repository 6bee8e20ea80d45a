// SPDX-License-Identifier: Apache-2.0
// Connections between the hosts of a job: both sides prove that they know the secret of the job
// before any other data of the other side is interpreted. Later frames are not encrypted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tessera/hosts/secret.h"
#include "tessera/launch/shared_files.h"

namespace tessera::hosts {

/// The largest body of a frame, checked before memory for it is allocated.
inline constexpr std::size_t kMostFrameBytes = std::size_t{1} << 20;

enum class FrameType : std::uint8_t {
  Join,    ///< a host has arrived: JoinFrame
  Ready,   ///< all hosts have arrived
  Refuse,  ///< the job will not start: kind, what, fix
  Lines,   ///< changed lines of the control page
  Abort,   ///< the world is broken: rank, kind, text
  Stop,    ///< a signal asks the job to stop
  Alive,   ///< nothing has changed
  Leave,   ///< the ranks of the host have ended
  Set,     ///< key, value
  Get,     ///< key; answered by Value when somebody has set it
  Value,   ///< key, value
  Probe,   ///< what a host is to try: the mark of the run folder; names, addresses and ports
  Probed,  ///< whether it sees the mark (0, 1; 2: not compared), and texts of hosts out of reach
  Ended,   ///< the agent of a host has ended: host, exit code; if an error ended it, that: kind,
           ///< what, fix. Answered by Alive
  Put,  ///< to a copy server (copy_server.h): set, what to keep, rank, name, bytes; then the bytes
  Fetch,   ///< to a copy server: set, name, offset, bytes
  List,    ///< to a copy server: what does it hold?
  Report,  ///< how the first rank of the job failed: kind, what, fix
  Facts,   ///< of a host that has joined: count, then kind, what, where and value of each
};

/// Values in the order in which they are written. Hosts of one job have the same byte order.
class FrameWriter {
 public:
  explicit FrameWriter(FrameType type);
  template <class T>
  FrameWriter& number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  FrameWriter& text(std::string_view value);
  /// Bytes without their number.
  FrameWriter& raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  /// Returns the whole frame: length, type and body.
  [[nodiscard]] std::string finish() const;

 private:
  std::string bytes_;
};

struct Frame {
  FrameType type = FrameType::Alive;
  std::string body;
};

/// Reads the values of a frame's body. Throws Error{Comm} if the body is shorter than they are.
class FrameReader {
 public:
  explicit FrameReader(const Frame& frame) : rest_(frame.body) {}
  template <class T>
  T number() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }
  std::string text();
  [[nodiscard]] bool done() const { return rest_.empty(); }

 private:
  std::string_view take(std::size_t bytes);
  std::string_view rest_;
};

/// Collects what arrives on a connection and splits it into frames.
class FrameBuffer {
 public:
  void append(const char* data, std::size_t bytes) { bytes_.append(data, bytes); }
  /// Returns the next complete frame. Throws Error{Comm} for one that is too long.
  std::optional<Frame> next();

 private:
  std::string bytes_;
};

// The handshake. The listening side sends a Greeting; the other one answers with a ClientProof;
// then the listening side sends its own Mac.

/// The beginning of every message of the handshake in all versions, and the claims of a process
/// about its job. Nothing vouches for it: it explains why two processes do not know the same
/// secret.
struct Introduction {
  std::uint32_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t world = 0;      ///< number of ranks of the job; 0: unknown
  std::uint32_t guessable = 0;  ///< Secret::guessable
};
struct Greeting {
  Introduction about;
  std::array<std::byte, kSecretBytes> nonce{};
};
struct ClientProof {
  Introduction about;
  std::array<std::byte, kSecretBytes> nonce{};
  Mac mac{};
};
/// `world`: number of ranks of the job; 0: unknown.
Introduction introduction(const Secret& secret, int world = 0);
/// Returns whether a message has begun as one of tessera does, of any version.
bool is_of_tessera(const Introduction& about);
/// Why two processes that speak this protocol do not belong to one job.
struct Mismatch {
  std::string what;  ///< about the other one: "was started for 8 ranks, and this host for 4"
  std::string fix;
};
/// `own`: what this side says; `other`: the other side.
Mismatch mismatch(const Introduction& own, const Introduction& other);
Greeting new_greeting(const Secret& secret, int world = 0);
Mac client_mac(const Secret& secret, const Greeting& greeting, const ClientProof& proof);
Mac server_mac(const Secret& secret, const Greeting& greeting, const ClientProof& proof);

/// One side of an authenticated connection, as a client uses it. Threads: one.
class FrameClient {
 public:
  /// Connects to the first of `ports` ports of `address` whose listener proves that it belongs to
  /// the job; tries again until `deadline`. `world`: number of ranks of the job, for messages.
  /// Throws Error{Comm} saying what was found at the ports, Error{Config} if that was another part
  /// of the job, started in another way, or if the address has no meaning.
  FrameClient(const std::string& address,
              int port,
              int ports,
              const Secret& secret,
              double deadline,
              int world = 0);

  [[nodiscard]] int fd() const { return fd_.get(); }
  /// Returns the address of this host on the way to the listener, for example "10.0.0.2".
  [[nodiscard]] std::string own_address() const;
  /// Sends a frame; returns false if the connection is broken.
  bool send(const FrameWriter& frame);
  /// Returns the next frame, or nothing at `deadline` or if the connection has ended.
  std::optional<Frame> receive(double deadline);
  /// Returns whether the other side has closed the connection, or an error occurred.
  [[nodiscard]] bool closed() const { return closed_; }

 private:
  launch::Fd fd_;
  FrameBuffer buffer_;
  bool closed_ = false;
};

/// Sends all bytes on a socket, waiting if necessary until `deadline`; returns false if it cannot.
bool send_all(int fd, const void* data, std::size_t bytes, double deadline) noexcept;
/// Receives exactly `bytes`; returns false at `deadline` or if the connection ends.
bool receive_all(int fd, void* data, std::size_t bytes, double deadline) noexcept;
/// Returns the numeric address of the other side, "10.0.0.7:4242".
std::string peer_address(int fd);

}  // namespace tessera::hosts
