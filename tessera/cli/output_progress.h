// SPDX-License-Identifier: Apache-2.0
// Tells whose lines an output file has, so that a command goes on only with its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::cli {

/// Throws Error{Config} if `out` is the input file `in`, which writing would destroy.
void require_other_file(const std::filesystem::path& in, const std::filesystem::path& out);

/// A text that is the same for commands that write the same lines: the words of the command line
/// except those that change no line (ranks, threads, batches, --out, --quiet), and the sizes and
/// times of the files in `inputs`, which are files or folders.
std::string command_text(std::string_view command,
                         const std::vector<std::string>& line,
                         const std::vector<std::filesystem::path>& inputs);

/// The complete lines at the beginning of an output.
struct MadeLines {
  std::size_t count = 0;
  std::uintmax_t bytes = 0;
};

/// The file OUT.progress, which exists while a command writes the lines of OUT, and has a hash of
/// its command_text(). Where it cannot be written, the command runs without it.
class OutputProgress {
 public:
  OutputProgress() = default;
  OutputProgress(std::filesystem::path out, const std::string& command);
  /// Returns which of the `made` lines in OUT are kept, of `all` that this command will write: none
  /// if OUT is finished, because another command may have written it. Changes no file; OutputFile
  /// removes the others with the first line of this command. Throws Error{Config} if another
  /// command began OUT.
  [[nodiscard]] MadeLines kept(MadeLines made, std::size_t all) const;
  /// Writes the note, if OUT is a plain file.
  void begin() const;
  /// Removes the note.
  void finish() const;

 private:
  [[nodiscard]] std::filesystem::path note() const;

  std::filesystem::path out_;
  std::string hash_;
};

}  // namespace tessera::cli
