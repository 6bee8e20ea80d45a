// SPDX-License-Identifier: Apache-2.0
// The tables of docs/tables/combinations.md: written from outcomes, and read again.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "equivalence/combinations.h"
#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::test {

/// The table has every tuple of values of this many dimensions that can occur.
constexpr int kTableStrength = 3;

inline std::string in_words(const Outcome& outcome) {
  if (!outcome.broken.empty()) return "BROKEN: " + outcome.broken;
  if (outcome.bits) return "equals one rank to the bit";
  return fmt::format(
      "equals one rank: gradient {:.1e}, loss {:.1e}", outcome.gradient, outcome.loss);
}

constexpr const char* kLayoutHead = "| pp | tp | sequence | cp | dp | schedule |";
constexpr const char* kCellHead = " ZeRO | precision | recompute | head | layers | |";

/// Writes why combinations are refused, and how many for each reason.
inline void write_refusals(std::ostream& out, const std::vector<CombinationResult>& results) {
  std::map<std::string, int> reasons;
  for (const auto& [cell, outcome] : results) {
    if (!outcome.refused.empty()) ++reasons[outcome.refused];
  }
  out << "\nRefused before anything starts:\n\n";
  for (const auto& [reason, count] : reasons)
    out << "- " << count << " times: " << reason << '\n';
}

/// A line for each combination that is not refused; then why the others are.
inline void write_cells(std::ostream& out, const std::vector<CombinationResult>& results) {
  out << kLayoutHead << kCellHead << "\n|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const CombinationResult& result : results) {
    if (result.outcome.refused.empty())
      out << "| " << result.cell.text() << " | " << in_words(result.outcome) << " |\n";
  }
  write_refusals(out, results);
}

/// Reads what write_cells() wrote into a page: the combination and the result of each line.
inline std::vector<std::pair<std::string, std::string>> read_cells(const std::string& page) {
  std::vector<std::pair<std::string, std::string>> out;
  bool inside = false;
  for (const std::string& line : text::split(page, '\n')) {
    if (line.empty()) inside = false;
    const std::size_t last = line.rfind(" | ");  // the line below the head has none
    if (inside && last != std::string::npos && line.size() > last + 5)
      out.emplace_back(line.substr(2, last - 2), line.substr(last + 3, line.size() - last - 5));
    if (line == std::string(kLayoutHead) + kCellHead) inside = true;
  }
  return out;
}

/// Returns how many refusals a page that write_refusals() wrote counts.
inline int count_refusals(const std::string& page) {
  int count = 0;
  for (const std::string& line : text::split(page, '\n')) {
    if (line.starts_with("- ") && line.find(" times: ") != std::string::npos)
      count += std::atoi(line.c_str() + 2);
  }
  return count;
}

/// Counts and deviations of several combinations.
struct Tally {
  int all = 0, equal = 0, to_the_bit = 0, refused = 0;
  double gradient = 0, loss = 0;
  void add(const Outcome& outcome) {
    ++all;
    if (!outcome.broken.empty()) return;
    if (!outcome.refused.empty()) {
      ++refused;
      return;
    }
    ++equal;
    to_the_bit += outcome.bits ? 1 : 0;
    gradient = std::max(gradient, outcome.gradient);
    loss = std::max(loss, outcome.loss);
  }
  [[nodiscard]] std::string text() const {
    if (refused == all) return fmt::format("{} refused", refused);
    const std::string count = fmt::format("{} of {}", equal, all - refused);
    return to_the_bit == equal
               ? count + " to the bit"
               : fmt::format("{}: gradient {:.1e}, loss {:.1e}", count, gradient, loss);
  }
};

/// Writes how many combinations there are of each kind, and the largest deviations of each
/// precision.
inline void write_summary(std::ostream& out, const std::vector<CombinationResult>& results) {
  Tally whole;
  std::map<std::string, Tally> tallies;
  for (const auto& [cell, outcome] : results) {
    whole.add(outcome);
    tallies[cell.precision()].add(outcome);
  }
  out << fmt::format(
      "Of {} combinations {} equal one rank to the bit, {} up to rounding, {} are refused, and {} "
      "are broken.\nThe largest deviations:",
      whole.all,
      whole.to_the_bit,
      whole.equal - whole.to_the_bit,
      whole.refused,
      whole.all - whole.equal - whole.refused);
  const char* between = " ";
  for (const char* precision : kPrecisions) {
    const Tally& tally = tallies[precision];
    out << between
        << fmt::format("{} gradient {:.1e}, loss {:.1e}", precision, tally.gradient, tally.loss);
    between = "; ";
  }
  out << ".\n\n";
}

/// A line for each layout, over ZeRO, recompute, head and layers.
inline void write_layouts(std::ostream& out, const std::vector<CombinationResult>& results) {
  std::vector<std::string> layouts;
  std::map<std::pair<std::string, std::string>, Tally> tallies;
  for (const auto& [cell, outcome] : results) {
    const std::string layout = cell.layout_text();
    if (std::find(layouts.begin(), layouts.end(), layout) == layouts.end())
      layouts.push_back(layout);
    tallies[{layout, cell.precision()}].add(outcome);
  }
  out << kLayoutHead;
  for (const char* precision : kPrecisions)
    out << ' ' << precision << " |";
  out << "\n|---|---|---|---|---|---|---|---|---|\n";
  for (const std::string& layout : layouts) {
    out << "| " << layout << " |";
    for (const char* precision : kPrecisions)
      out << ' ' << tallies[{layout, precision}].text() << " |";
    out << '\n';
  }
}

/// The file into which tools/equivalence_table.sh wants the table; empty: none.
inline std::string combinations_file() {
  const char* const path = std::getenv("TESSERA_COMBINATIONS_TABLE");
  return path == nullptr ? "" : path;
}

}  // namespace tessera::test
