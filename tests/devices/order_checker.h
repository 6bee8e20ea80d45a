// SPDX-License-Identifier: Apache-2.0
// Checks the order in which streams and the host access the memory of a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::test {

/// For each stream, the number of its operations that are known to be complete (a vector clock).
using StreamClock = std::map<int, std::int64_t>;

/// Finds accesses that are not ordered by an event or a wait. A simulated device executes every
/// operation at once and in program order, so that results are right although a wait is missing;
/// therefore each access is compared with the last ones of the same bytes: a write of another
/// stream must have been waited for, and reads must have been before a write. The idea is that of
/// torch.cuda._sanitizer. Threads: one at a time.
class OrderChecker {
 public:
  struct Range {
    const std::byte* begin = nullptr;
    std::size_t bytes = 0;
  };

  /// An operation on `stream`, launched by `host`, that reads and writes ranges. Streams and hosts
  /// have different numbers.
  void access(int stream,
              int host,
              const std::string& what,
              const std::vector<Range>& reads,
              const std::vector<Range>& writes);
  /// The work of `stream` so far.
  [[nodiscard]] StreamClock record(int stream) const;
  /// `stream`, or a host, continues after that work.
  void wait(int stream, const StreamClock& work);
  [[nodiscard]] bool knows(int stream, const StreamClock& work) const;
  /// Memory is given back to the stream that allocated it, which may reuse it at once. `used`: the
  /// other streams for which it is kept until their work is complete.
  void free(const Range& range, int stream, int host, const std::vector<int>& used);
  /// The violations since the last call, one sentence each.
  std::vector<std::string> take_violations();

 private:
  struct Access {
    int stream = 0;
    std::int64_t number = 0;  ///< of the stream's operations; 0: there was none
    std::string what;
  };
  struct Cell {
    std::size_t bytes = 0;
    Access write;
    std::map<int, Access> reads;
  };

  void need(const StreamClock& known,
            const Access& before,
            int stream,
            const std::string& what,
            const char* does);
  /// Cuts the cells at `at`.
  void cut(const std::byte* at);
  /// The cells that cover the range.
  std::vector<Cell*> cells_of(const Range& range);

  std::map<int, StreamClock> clocks_;
  std::map<const std::byte*, Cell> cells_;
  std::vector<std::string> violations_;
};

}  // namespace tessera::test
