// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/local_start.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/launch/core_list.h"
#include "tessera/launch/machine.h"

namespace tessera::launch {
namespace {

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  std::array<char, 32> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%d_%H-%M-%S", &parts);
  return {text.data(), length};
}

}  // namespace

void check_cores(const LocalStart& start, int local_ranks) {
  if (!start.bind_cores) return;
  const std::vector<int> usable = affinity_cores();
  const std::vector<int>& named = start.core_list;
  static_cast<void>(equal_share(named.empty() ? usable : named, 0, local_ranks));
  for (const int core : named) {
    TESSERA_REQUIRE(
        std::find(usable.begin(), usable.end(), core) != usable.end(),
        Config,
        fmt::format("--bind_core_list names processor {}, which this process may not use", core),
        "taskset -pc $$ shows the ones that it may use");
  }
}

std::vector<Fd> output_files(const LocalStart& start, int first_rank, int local_ranks) {
  std::vector<Fd> files;
  if (start.log_folder.empty()) return files;
  std::error_code unknown;
  std::filesystem::create_directories(start.log_folder, unknown);
  const std::string time = time_of_day();
  for (int i = 0; i < local_ranks; ++i) {
    const std::string path =
        fmt::format("{}/{}_rank{}.log", start.log_folder, time, first_rank + i);
    try {
      files.emplace_back(files::open_own(path, O_WRONLY | O_CREAT | O_APPEND));
    } catch (const Error& error) {
      throw Error(
          Error::Kind::Io, error.what(), "give --enable_each_rank_log a folder that is writable");
    }
  }
  return files;
}

void redirect_output(const Fd& file) noexcept {
  if (file.get() < 0) return;
  dup2(file.get(), STDOUT_FILENO);
  dup2(file.get(), STDERR_FILENO);
}

PidFile::PidFile()
    : path_((std::filesystem::temp_directory_path() / fmt::format("{}.ds", getpid())).string()),
      owner_(getpid()) {
  files::write_atomic(path_, fmt::format("{}\n", owner_));
}

PidFile::~PidFile() {
  std::error_code ignored;
  if (getpid() == owner_) std::filesystem::remove(path_, ignored);
}

}  // namespace tessera::launch
