// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/flight_report.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"

namespace tessera::report {
namespace {

constexpr std::uintmax_t kMostFileBytes = std::uintmax_t{1} << 20;
constexpr std::size_t kMostOperations = 4096;

[[noreturn]] void refuse_line(const std::string& file, std::size_t line) {
  throw Error(Error::Kind::Format,
              fmt::format("{}:{}: not a line of a flight recorder", file, line),
              "remove the file: the records of the other ranks can still be read");
}

std::int64_t integer_in(const json::Value& line,
                        const char* key,
                        const std::string& file,
                        std::size_t at) {
  const json::Value* const value = line.is_object() ? line.find(key) : nullptr;
  const auto number = value != nullptr && value->is_number() ? value->as_integer() : std::nullopt;
  if (!number) refuse_line(file, at);
  return *number;
}

std::string text_in(const json::Value& line,
                    const char* key,
                    const std::string& file,
                    std::size_t at) {
  const json::Value* const value = line.is_object() ? line.find(key) : nullptr;
  if (value == nullptr || !value->is_string()) refuse_line(file, at);
  return value->as_string();
}

bool truth_in(const json::Value& line, const char* key, const std::string& file, std::size_t at) {
  const json::Value* const value = line.is_object() ? line.find(key) : nullptr;
  if (value == nullptr || !value->is_bool()) refuse_line(file, at);
  return value->as_bool();
}

FlightLog read_flight_log(const std::filesystem::path& path) {
  const std::string file = path.string();
  TESSERA_REQUIRE(std::filesystem::file_size(path) <= kMostFileBytes,
                  Format,
                  fmt::format("{} is too long for the record of a rank", file),
                  "");
  FlightLog log;
  std::size_t number = 0;
  for (const std::string& text : text::split(files::read(path), '\n')) {
    ++number;
    if (text.empty()) continue;
    const json::Value line = json::parse_strict(text, fmt::format("{}:{}", file, number));
    if (number == 1) {
      log.rank = static_cast<int>(integer_in(line, "rank", file, number));
      log.ranks = static_cast<int>(integer_in(line, "ranks", file, number));
      log.waits_for = static_cast<int>(integer_in(line, "waits_for", file, number));
      log.step = integer_in(line, "step", file, number);
      log.posted = integer_in(line, "posted", file, number);
      log.broke_it = truth_in(line, "broke_it", file, number);
      // Records of earlier versions have no host.
      if (line.find("host") != nullptr) log.host = text_in(line, "host", file, number);
      log.message = text_in(line, "message", file, number);
      if (log.rank < 0 || log.ranks < 1 || log.ranks > kMostFlightLogs || log.rank >= log.ranks)
        refuse_line(file, number);
      continue;
    }
    if (log.operations.size() >= kMostOperations) refuse_line(file, number);
    log.operations.push_back({integer_in(line, "number", file, number),
                              integer_in(line, "sequence", file, number),
                              integer_in(line, "step", file, number),
                              text_in(line, "ranks", file, number),
                              text_in(line, "what", file, number),
                              truth_in(line, "done", file, number)});
  }
  if (number == 0 || log.ranks == 0) refuse_line(file, 1);
  return log;
}

std::string step_text(std::int64_t step) {
  return step < 0 ? "before the first step" : fmt::format("step {}", step);
}

std::string name_of(const FlightLog& log) {
  return log.host.empty() ? fmt::format("rank {}", log.rank)
                          : fmt::format("rank {} of host {}", log.rank, log.host);
}

std::string line_of(const FlightLog& log) {
  std::string text = fmt::format("{}: {}", name_of(log), step_text(log.step));
  if (log.operations.empty()) {
    text += ", has posted nothing";
  } else {
    const FlightOperation& last = log.operations.back();
    text += fmt::format(
        ", its operation {}: {}{}", last.number, last.what, last.done ? ", which is complete" : "");
  }
  if (log.waits_for >= 0) text += fmt::format(", waits for rank {}", log.waits_for);
  return text;
}

/// The last operation that each rank of a group has posted there, and all that are known.
struct GroupFlight {
  std::map<int, std::int64_t> last;
  std::map<std::int64_t, std::map<int, std::string>> what;  // by sequence and rank
};

std::string some_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (const int rank : ranks)
    names.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + text::join_some(names, ", ");
}

/// "all_reduce" of "all_reduce loss at x.cpp:12".
std::string_view kind_in(std::string_view what) {
  return what.substr(0, what.find(' '));
}

/// The ranks that a finding may name as the reason. Where the reason is known, the ranks that only
/// stopped with it are none.
struct Suspects {
  bool known = false;
  std::set<int> ranks;
  [[nodiscard]] bool may_be(int rank) const { return !known || ranks.contains(rank); }
};

/// True if the text names the rank, as in "rank 3 was lost".
bool names_rank(const std::string& text, int rank) {
  const std::string name = fmt::format("rank {}", rank);
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    const bool longer = end < text.size() && text[end] >= '0' && text[end] <= '9';
    if (!longer) return true;
  }
  return false;
}

/// `cause`: why the job says that it failed; empty if it says nothing.
Suspects suspects_of(const std::vector<FlightLog>& logs, const std::string& cause) {
  Suspects out{.known = !cause.empty()};
  for (int rank = 0; rank < logs.front().ranks && out.known; ++rank) {
    if (names_rank(cause, rank)) out.ranks.insert(rank);
  }
  for (const FlightLog& log : logs) {
    const bool told = cause.empty() || names_rank(cause, log.rank) || cause.find(log.message) == 0;
    if (!log.broke_it || !told) continue;
    out.known = true;
    out.ranks.insert(log.rank);
    // A rank that ends the job may name another one: "rank 3 hangs".
    for (int rank = 0; rank < log.ranks; ++rank) {
      if (names_rank(log.message, rank)) out.ranks.insert(rank);
    }
  }
  return out;
}

void explain_group(const std::string& name,
                   const GroupFlight& group,
                   const Suspects& suspects,
                   std::vector<std::string>& findings) {
  for (const auto& [sequence, calls] : group.what) {
    std::set<std::string_view> kinds;
    for (const auto& [rank, what] : calls)
      kinds.insert(kind_in(what));
    if (kinds.size() < 2) continue;
    std::vector<std::string> each;
    for (const auto& [rank, what] : calls)
      each.push_back(fmt::format("rank {} called {}", rank, what));
    findings.push_back(fmt::format(
        "operation {} of ranks {} differs: {}", sequence, name, text::join_some(each, "; ")));
    return;
  }
  const std::vector<int> members = ranks_of_list(name);
  std::int64_t newest = -1, oldest = -1;
  for (const int rank : members) {
    const auto last = group.last.find(rank);
    if (last == group.last.end()) continue;
    newest = std::max(newest, last->second);
    oldest = oldest < 0 ? last->second : std::min(oldest, last->second);
  }
  if (newest <= oldest) return;
  std::vector<int> behind;
  for (const int rank : members) {
    const auto last = group.last.find(rank);
    if (last != group.last.end() && last->second == oldest && suspects.may_be(rank))
      behind.push_back(rank);
  }
  if (behind.empty()) return;
  const auto next = group.what.find(oldest + 1);
  if (next == group.what.end() || next->second.empty()) return;
  std::vector<int> callers;
  for (const auto& [rank, what] : next->second)
    callers.push_back(rank);
  findings.push_back(fmt::format("{} did not call operation {} of ranks {}: {}; called by {}",
                                 some_ranks(behind),
                                 oldest + 1,
                                 name,
                                 next->second.begin()->second,
                                 some_ranks(callers)));
}

/// Returns why the ranks stopped: the rank that broke the run, then the reasons of the other ranks
/// that differ from its message. After a partition each side has a reason of its own.
std::vector<std::string> reasons(const std::vector<FlightLog>& logs, const Suspects& suspects) {
  std::vector<std::string> lines;
  std::set<std::string> known;
  for (const FlightLog& log : logs) {
    if (!log.broke_it || !suspects.may_be(log.rank)) continue;
    lines.push_back(fmt::format("{} broke it: {}", name_of(log), log.message));
    known.insert(log.message);
  }
  for (const FlightLog& log : logs) {
    if (log.message.empty() || !known.insert(log.message).second) continue;
    std::vector<int> ranks;
    for (const FlightLog& other : logs) {
      if (other.message == log.message) ranks.push_back(other.rank);
    }
    lines.push_back(fmt::format("{} stopped because: {}", some_ranks(ranks), log.message));
  }
  return lines;
}

}  // namespace

std::vector<int> ranks_of_list(const std::string& list) {
  std::vector<int> ranks;
  for (const std::string& range : text::split(list, ',')) {
    int first = -1, last = -1;
    const char* const end = range.data() + range.size();
    auto [stop, error] = std::from_chars(range.data(), end, first);
    last = first;
    if (error == std::errc() && stop != end && *stop == '-') {
      const auto second = std::from_chars(stop + 1, end, last);
      stop = second.ptr;
      error = second.ec;
    }
    const bool good = error == std::errc() && stop == end && first >= 0 && last >= first &&
                      last < kMostFlightLogs;
    if (!good) return {};
    for (int rank = first; rank <= last; ++rank)
      ranks.push_back(rank);
  }
  return ranks;
}

std::vector<FlightLog> read_flight_logs(const std::filesystem::path& folder) {
  std::vector<FlightLog> logs;
  std::error_code unknown;
  for (const auto& entry : std::filesystem::directory_iterator(folder, unknown)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("flight_rank_") && name.ends_with(".jsonl") &&
        logs.size() < static_cast<std::size_t>(kMostFlightLogs))
      logs.push_back(read_flight_log(entry.path()));
  }
  std::sort(logs.begin(), logs.end(), [](const FlightLog& a, const FlightLog& b) {
    return a.rank < b.rank;
  });
  return logs;
}

std::vector<std::string> explain_flight(const std::vector<FlightLog>& logs,
                                        const std::string& cause) {
  std::vector<std::string> lines, findings;
  if (logs.empty()) return lines;
  std::map<std::string, GroupFlight> groups;
  std::set<int> known;
  const Suspects suspects = suspects_of(logs, cause);
  for (const FlightLog& log : logs) {
    known.insert(log.rank);
    lines.push_back(line_of(log));
    for (const FlightOperation& operation : log.operations) {
      GroupFlight& group = groups[operation.ranks];
      group.last[log.rank] = std::max(group.last[log.rank], operation.sequence);
      group.what[operation.sequence][log.rank] = operation.what;
    }
  }
  for (int rank = 0; rank < logs.front().ranks; ++rank) {
    if (known.contains(rank)) continue;
    findings.push_back(fmt::format(
        "rank {} left no record{}",
        rank,
        suspects.may_be(rank) ? ": it ended, or its host was lost" : ", or its host kept it"));
  }
  // Both ends of a message are one operation of two different kinds of calls.
  for (const auto& [name, group] : groups) {
    const bool messages = !group.what.empty() && !group.what.begin()->second.empty() &&
                          kind_in(group.what.begin()->second.begin()->second) == "message";
    if (!messages) explain_group(name, group, suspects, findings);
  }
  if (findings.empty() && !suspects.known)
    findings.emplace_back("every rank called the same operations");
  const std::vector<std::string> why = reasons(logs, suspects);
  lines.insert(lines.end(), why.begin(), why.end());
  lines.insert(lines.end(), findings.begin(), findings.end());
  return lines;
}

}  // namespace tessera::report
