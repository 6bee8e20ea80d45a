// SPDX-License-Identifier: Apache-2.0
// A run folder as shown on a page or a board, during the run or afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::report {

/// Reads metrics.jsonl incrementally: refresh() reads added data, and only the steps that are shown
/// are parsed. Scanning a million steps takes about half a second. The files may come from
/// elsewhere: lines that cannot be parsed are left out. Threads: one at a time.
class RunView {
 public:
  /// Throws Error{Io} if `folder` is not a run folder.
  explicit RunView(std::filesystem::path folder);

  /// Returns whether the folder has the files of a run.
  static bool is_run(const std::filesystem::path& folder);
  /// Reads new data. A file that has become shorter, as after a resume, is read from its beginning.
  void refresh();

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] std::string name() const;
  [[nodiscard]] std::size_t steps() const { return train_.size(); }
  /// {"name", "state", "step", "max_steps", "message", "loss", "eval_loss", "tokens_per_s",
  /// "eta_s"} as far as they are known.
  [[nodiscard]] json::Value summary() const;
  /// The summary, and {"train": {NAME: [...]}, "eval": {NAME: [...]}, "config": {PATH: VALUE},
  /// "samples": [...], "checkpoints": [...], "events": [...], "ranks": ranks(),
  /// "experts": experts.json, if there is one}. The lists of a split are equally long, with null
  /// where a line does not have the name. Of more steps than `points`, those with the lowest and
  /// the highest loss of equal parts are chosen, so that no peak is lost.
  [[nodiscard]] json::Value details(std::size_t points) const;
  /// Losses of at most `points` equal parts of the run, the mean of each; not finite ones are left
  /// out.
  [[nodiscard]] std::vector<double> losses(std::size_t points) const;
  /// ranks.json of the run, with at most 64 ranks and "more_ranks", the number of those left out;
  /// null if the run has none, as older runs do.
  [[nodiscard]] json::Value ranks() const;
  /// The last warnings and errors in the log of the first rank.
  [[nodiscard]] std::vector<std::string> events() const;

 private:
  struct Line {
    std::uint64_t begin = 0;
    float loss = 0;  ///< NaN: none that is finite
    std::uint32_t size = 0;
  };
  void take(std::string_view line, std::uint64_t begin);
  [[nodiscard]] std::vector<std::size_t> chosen(std::size_t points) const;
  [[nodiscard]] std::vector<json::Value> parsed(const std::vector<Line>& lines,
                                                const std::vector<std::size_t>& which) const;

  /// The median of the last steps, in seconds; 0 if there are none.
  [[nodiscard]] double median_step_s() const;

  std::filesystem::path folder_;
  std::uint64_t scanned_ = 0;
  std::string torn_;  ///< a line without its end
  std::vector<Line> train_, eval_;
};

}  // namespace tessera::report
