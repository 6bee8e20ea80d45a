// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/draft.h"

#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

Draft::Draft(const fs::path& target)
    : target_(target), path_(target.parent_path() / draft_name(target.filename(), ::getpid())) {
  remove_stale_drafts(real_storage(), target);
}

Draft::~Draft() {
  std::error_code ignored;  // a destructor cannot report errors
  fs::remove_all(path_, ignored);
}

void Draft::publish() {
  Storage& disk = real_storage();
  if (fs::is_directory(path_)) disk.sync_folder(path_);
  if (fs::exists(target_) && !disk.exchange(path_, target_)) disk.remove(target_);
  if (!fs::exists(target_)) disk.rename(path_, target_);
  disk.sync_folder(target_.parent_path());
}

}  // namespace tessera::checkpoint
