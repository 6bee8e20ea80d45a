// SPDX-License-Identifier: Apache-2.0
// The run folder of a job of several hosts, as each of them is to check it.
#pragma once

#include <string>

namespace tessera::launch {

struct RunFolderCheck {
  std::string path;             ///< empty: nothing is checked
  bool must_be_shared = false;  ///< the job cannot save if each host has a folder of its own
};

}  // namespace tessera::launch
