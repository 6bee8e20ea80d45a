// SPDX-License-Identifier: Apache-2.0
// The start of the processes of local ranks: their processors, and where their output goes.
#pragma once

#include <string>
#include <vector>

#include "tessera/launch/launch.h"
#include "tessera/launch/shared_files.h"

namespace tessera::launch {

/// Throws Error{Config} if the ranks of this host could not have the processors that `start` asks
/// for: there are fewer than ranks, or this process may not use one of them.
void check_cores(const LocalStart& start, int local_ranks);

/// Creates the folder and one file for the output of each rank, from `first_rank` on, named by the
/// time of this call. Returns nothing if `start` names no folder. Throws Error{Io}.
std::vector<Fd> output_files(const LocalStart& start, int first_rank, int local_ranks);

/// Makes `file` the standard output and error of this process; does nothing if it is closed.
void redirect_output(const Fd& file) noexcept;

/// A file that contains the number of this process as long as the object lives, as DeepSpeed's
/// --save_pid writes it: `<folder of temporary files>/<pid>.ds`. Throws Error{Io}.
class PidFile {
 public:
  PidFile();
  ~PidFile();
  PidFile(const PidFile&) = delete;
  PidFile& operator=(const PidFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  int owner_;  ///< forked ranks do not remove the file
};

}  // namespace tessera::launch
