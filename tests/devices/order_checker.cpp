// SPDX-License-Identifier: Apache-2.0
#include "devices/order_checker.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace tessera::test {
namespace {

void join(StreamClock& into, const StreamClock& other) {
  for (const auto& [stream, number] : other)
    into[stream] = std::max(into[stream], number);
}

/// Hosts have negative numbers.
std::string name_of(int stream) {
  return stream < 0 ? "the host" : fmt::format("stream {}", stream);
}

}  // namespace

void OrderChecker::access(int stream,
                          int host,
                          const std::string& what,
                          const std::vector<Range>& reads,
                          const std::vector<Range>& writes) {
  StreamClock& clock = clocks_[stream];
  join(clock, clocks_[host]);  // the operation is launched after everything that the host knows
  const Access now = {stream, ++clock[stream], what};
  for (const Range& range : reads) {
    for (Cell* const cell : cells_of(range))
      need(clock, cell->write, stream, what, "reads what");
  }
  for (const Range& range : writes) {
    for (Cell* const cell : cells_of(range)) {
      need(clock, cell->write, stream, what, "writes over what");
      for (const auto& [reader, read] : cell->reads)
        need(clock, read, stream, what, "writes over what");
    }
  }
  for (const Range& range : reads) {
    for (Cell* const cell : cells_of(range))
      cell->reads[stream] = now;
  }
  for (const Range& range : writes) {
    for (Cell* const cell : cells_of(range)) {
      cell->write = now;
      cell->reads.clear();
    }
  }
}

StreamClock OrderChecker::record(int stream) const {
  const auto found = clocks_.find(stream);
  return found == clocks_.end() ? StreamClock() : found->second;
}

void OrderChecker::wait(int stream, const StreamClock& work) {
  join(clocks_[stream], work);
}

bool OrderChecker::knows(int stream, const StreamClock& work) const {
  const StreamClock known = record(stream);
  return std::all_of(work.begin(), work.end(), [&](const auto& one) {
    const auto found = known.find(one.first);
    return found != known.end() && found->second >= one.second;
  });
}

void OrderChecker::free(const Range& range, int stream, int host, const std::vector<int>& used) {
  if (range.bytes == 0) return;
  StreamClock clock = record(stream);
  join(clock, record(host));
  for (const int other : used)
    join(clock, record(other));
  std::vector<Cell> last;
  for (Cell* const cell : cells_of(range))
    last.push_back(std::move(*cell));
  cells_.erase(cells_.lower_bound(range.begin), cells_.lower_bound(range.begin + range.bytes));
  for (const Cell& cell : last) {
    need(clock, cell.write, stream, "free()", "gives back what");
    for (const auto& [reader, read] : cell.reads)
      need(clock, read, stream, "free()", "gives back what");
  }
}

std::vector<std::string> OrderChecker::take_violations() {
  return std::exchange(violations_, {});
}

void OrderChecker::need(const StreamClock& known,
                        const Access& before,
                        int stream,
                        const std::string& what,
                        const char* does) {
  constexpr std::size_t kMost = 1000;
  if (before.number == 0 || before.stream == stream || violations_.size() >= kMost) return;
  const auto found = known.find(before.stream);
  if (found != known.end() && found->second >= before.number) return;
  violations_.push_back(fmt::format("{} on {} {} {} on {} accesses, without waiting for it",
                                    what,
                                    name_of(stream),
                                    does,
                                    before.what,
                                    name_of(before.stream)));
}

void OrderChecker::cut(const std::byte* at) {
  auto cell = cells_.upper_bound(at);
  if (cell == cells_.begin()) return;
  --cell;
  if (cell->first == at || at >= cell->first + cell->second.bytes) return;
  Cell rest = cell->second;
  rest.bytes = static_cast<std::size_t>(cell->first + cell->second.bytes - at);
  cell->second.bytes = static_cast<std::size_t>(at - cell->first);
  cells_.emplace(at, std::move(rest));
}

std::vector<OrderChecker::Cell*> OrderChecker::cells_of(const Range& range) {
  std::vector<Cell*> out;
  if (range.bytes == 0) return out;
  const std::byte* const end = range.begin + range.bytes;
  cut(range.begin);
  cut(end);
  auto cell = cells_.lower_bound(range.begin);
  for (const std::byte* at = range.begin; at < end;) {
    if (cell == cells_.end() || cell->first > at) {
      const std::byte* const to = cell == cells_.end() ? end : std::min(cell->first, end);
      cell = cells_.emplace(at, Cell{static_cast<std::size_t>(to - at), {}, {}}).first;
    }
    out.push_back(&cell->second);
    at = cell->first + cell->second.bytes;
    ++cell;
  }
  return out;
}

}  // namespace tessera::test
