// SPDX-License-Identifier: Apache-2.0
// The files that decide the result of a run, noted by the code that reads them. Hosts of a job
// compare their contents before the ranks begin.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

struct Input {
  std::string what;                          ///< "model", "adapter", "reward program"
  std::string where;                         ///< as the user wrote it: a folder or a file
  std::vector<std::filesystem::path> files;  ///< those that are read, each of which decides
  bool operator==(const Input&) const = default;
};

/// Collects the inputs that this thread notes while the object exists; inner objects hide outer
/// ones.
class InputLog {
 public:
  explicit InputLog(std::vector<Input>& to);
  ~InputLog();
  InputLog(const InputLog&) = delete;
  InputLog& operator=(const InputLog&) = delete;

 private:
  friend void note_input(Input input);
  std::vector<Input>& to_;
  InputLog* outer_;
};

/// Adds an input to the log of this thread, unless it is there already; has no effect without one.
void note_input(Input input);
/// Notes a program with its arguments: the program itself, which is searched in PATH, and every
/// argument that names a file.
void note_program(const std::string& what, const std::vector<std::string>& words);

}  // namespace tessera
