// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/flight.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <mutex>

#include <fmt/format.h>

#include "tessera/base/files.h"

namespace tessera::comm {
namespace {

template <std::size_t N>
void store_text(std::array<std::atomic<std::uint64_t>, N>& words, std::string_view text) noexcept {
  std::array<std::uint64_t, N> copy{};
  std::memcpy(copy.data(), text.data(), std::min(text.size(), sizeof(copy) - 1));
  for (std::size_t i = 0; i < N; ++i)
    words[i].store(copy[i], std::memory_order_relaxed);
}

template <std::size_t N>
std::string load_text(const std::array<std::atomic<std::uint64_t>, N>& words) {
  std::array<std::uint64_t, N + 1> copy{};
  for (std::size_t i = 0; i < N; ++i)
    copy[i] = words[i].load(std::memory_order_relaxed);
  return reinterpret_cast<const char*>(copy.data());
}

/// The folder into which the ranks of this process write their records, and the name of their host.
struct FlightPlace {
  std::string folder, host;
};
std::mutex place_mutex;
FlightPlace& flight_place() {
  static FlightPlace place;
  return place;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out;
}

}  // namespace

void FlightRing::post(std::uint64_t number,
                      std::uint64_t sequence,
                      std::int64_t step,
                      std::string_view ranks,
                      std::string_view what) noexcept {
  FlightEntry& entry = entries[number % kEntries];
  entry.number.store(0);
  entry.sequence.store(sequence, std::memory_order_relaxed);
  entry.step.store(step, std::memory_order_relaxed);
  store_text(entry.ranks, ranks);
  store_text(entry.what, what);
  entry.number.store(number);
}

void FlightRing::finish(std::uint64_t number) noexcept {
  FlightEntry& entry = entries[number % kEntries];
  if (entry.number.load(std::memory_order_relaxed) == number) entry.done.store(number);
}

std::vector<FlightRecord> read_flight(const FlightRing& ring) {
  std::vector<FlightRecord> records;
  for (const FlightEntry& entry : ring.entries) {
    FlightRecord record;
    record.number = entry.number.load();
    record.sequence = entry.sequence.load(std::memory_order_relaxed);
    record.step = entry.step.load(std::memory_order_relaxed);
    record.ranks = load_text(entry.ranks);
    record.what = load_text(entry.what);
    record.done = entry.done.load() == record.number;
    if (record.number != 0 && entry.number.load() == record.number) records.push_back(record);
  }
  std::sort(records.begin(), records.end(), [](const FlightRecord& a, const FlightRecord& b) {
    return a.number < b.number;
  });
  return records;
}

std::string short_list(const std::vector<int>& ranks) {
  constexpr std::size_t kRoom = sizeof(FlightEntry::ranks) - 1;
  constexpr std::string_view kMore = ",...";
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1)
      ++end;
    const std::string part =
        end == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end]);
    if (text.size() + 1 + part.size() + kMore.size() > kRoom) return text + std::string(kMore);
    text += text.empty() ? part : "," + part;
    i = end + 1;
  }
  return text;
}

void set_flight_folder(const std::string& folder, const std::string& host) {
  const std::lock_guard lock(place_mutex);
  flight_place() = {folder, host};
}

void write_flight(int rank, const FlightRing& ring, ControlPage& control) noexcept {
  try {
    const std::lock_guard lock(place_mutex);
    const FlightPlace& place = flight_place();
    if (place.folder.empty()) return;
    const RankLine& line = control.line(rank);
    const std::uint32_t waits_for = line.waiting_for.load();
    std::string text = fmt::format(
        R"({{"rank": {}, "ranks": {}, "step": {}, "state": {}, "posted": {}, "waits_for": {}, "host": "{}", "broke_it": {}, "message": "{}"}})"
        "\n",
        rank,
        control.ranks,
        line.step.load(),
        line.state.load(),
        line.last_seq.load(),
        static_cast<int>(waits_for) - 1,
        escaped(place.host),
        control.abort_rank.load() == static_cast<std::uint32_t>(rank),
        escaped(control.abort_message()));
    for (const FlightRecord& record : read_flight(ring)) {
      text += fmt::format(
          R"({{"number": {}, "step": {}, "ranks": "{}", "sequence": {}, "what": "{}", "done": {}}})"
          "\n",
          record.number,
          record.step,
          escaped(record.ranks),
          record.sequence,
          escaped(record.what),
          record.done);
    }
    files::write_atomic(
        std::filesystem::path(place.folder) / fmt::format("flight_rank_{:05}.jsonl", rank), text);
  } catch (const std::exception&) {
    return;  // the error that broke the world is reported
  }
}

}  // namespace tessera::comm
