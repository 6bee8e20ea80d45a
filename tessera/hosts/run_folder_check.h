// SPDX-License-Identifier: Apache-2.0
// The run folder that each host of a job has to check.
#pragma once

#include <string>

namespace tessera::hosts {

struct RunFolderCheck {
  std::string path;             ///< empty: nothing is checked
  bool must_be_shared = false;  ///< the job cannot save if each host has a folder of its own
  bool must_be_own = false;     ///< the job cannot save if hosts have the same folder
};

}  // namespace tessera::hosts
