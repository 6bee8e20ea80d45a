// SPDX-License-Identifier: Apache-2.0
// Standard output and standard error: tables, steps and text go to one, warnings and errors to the
// other.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tessera/base/log.h"
#include "tessera/engine/console.h"

namespace tessera::cli {

/// True if that descriptor is a terminal that shows this process alone: not that of a launcher, in
/// which the lines of all ranks meet.
bool shows_live_lines(int descriptor);

/// Lets this process and its ranks go on if nobody reads their output, as a training must: after
/// some seconds, lines that find no room in a full pipe are dropped (base/bounded_output.h). `goes`
/// false: commands wait for their reader, which is the default.
void go_on_without_a_reader(bool goes = true);

/// Standard output. The live line exists on a terminal only. Control characters in a line are shown
/// as escapes; data() and stream() pass them on.
class Terminal final : public engine::Console {
 public:
  Terminal();
  ~Terminal() override;
  void line(std::string_view text) override;
  void live(std::string_view text) override;
  /// Prints a line of a result, such as JSON or a generated text, as it is.
  void data(std::string_view text);
  void stream(std::string_view text) override;
  [[nodiscard]] bool is_terminal() const override { return terminal_; }
  void on_wait(const std::function<void()>& call) override { on_wait_ = call; }

 private:
  void erase_live();
  void put(std::string_view text) { unwritten_ += text; }
  void flush();
  bool terminal_;
  std::string unwritten_;
  bool live_ = false;
  std::function<void()> on_wait_;
};

/// True if standard output has no reader any more. If a write before the last one failed for that
/// reason, nothing else distinguishes it from a full disk.
bool reader_has_gone();

/// Writes what standard output holds. Throws Error{Io} if it or an earlier part was not written, as
/// on a full disk; a reader that has exited is not a failure.
void require_output_written();

/// Prints "error: ..." to standard error, coloured on a terminal unless NO_COLOR is set.
void print_error(const std::string& text);
/// Prints a note of what a command does to standard error.
void print_note(const std::string& text);
/// Sets the level from which messages appear on standard error; the default is warnings and errors.
/// The log's own level is lowered with it.
void show_log(log::Level level);
/// The sink of the program's log.
void print_log(log::Level level, std::string_view message);

}  // namespace tessera::cli
