// SPDX-License-Identifier: Apache-2.0
// Words for people and for the rank's log file. The library never prints: the program chooses where
// this goes.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace tessera::log {

enum class Level { Debug, Info, Warning, Error };

/// Receives every message of this process at or above the level; called under a lock.
using Sink = std::function<void(Level, std::string_view message)>;

void set_sink(Sink sink);  ///< none (the default): messages are dropped
void set_level(Level level);
/// Opens (appends to) a file that receives every message with its time, beside the sink. Empty:
/// closes it. Error{Io} if it cannot be opened; that it takes no more, as on a full disk, is one
/// warning to the sink.
void open_file(const std::string& path);

void debug(std::string_view message);
void info(std::string_view message);
void warn(std::string_view message);
void error(std::string_view message);
/// A warning that appears once in a process however often it is raised.
void warn_once(std::string_view message);

}  // namespace tessera::log
