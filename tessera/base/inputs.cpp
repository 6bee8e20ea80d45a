// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/inputs.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "tessera/base/text.h"

namespace tessera {
namespace {

thread_local InputLog* current = nullptr;

/// Returns the file that execvp() would run; the word itself if there is none.
std::filesystem::path program_of(const std::string& word) {
  const char* const path = std::getenv("PATH");
  if (path == nullptr || word.find('/') != std::string::npos) return word;
  std::error_code unknown;
  for (const std::string& folder : text::split(path, ':')) {
    std::filesystem::path file = std::filesystem::path(folder) / word;
    if (std::filesystem::is_regular_file(file, unknown)) return file;
  }
  return word;
}

}  // namespace

InputLog::InputLog(std::vector<Input>& to) : to_(to), outer_(std::exchange(current, this)) {}

InputLog::~InputLog() {
  current = outer_;
}

void note_input(Input input) {
  if (current == nullptr) return;
  std::vector<Input>& known = current->to_;
  if (std::ranges::find(known, input) == known.end()) known.push_back(std::move(input));
}

void note_program(const std::string& what, const std::vector<std::string>& words) {
  Input input{what, text::join(words, " "), {}};
  std::error_code unknown;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::filesystem::path file = i == 0 ? program_of(words[i]) : std::filesystem::path(words[i]);
    if (std::filesystem::is_regular_file(file, unknown)) input.files.push_back(std::move(file));
  }
  note_input(std::move(input));
}

}  // namespace tessera
