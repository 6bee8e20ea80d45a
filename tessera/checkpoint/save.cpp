// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/consensus.h"
#include "tessera/checkpoint/saver.h"
#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

fs::path save(Storage& storage,
              const fs::path& root,
              const Meta& meta,
              std::span<const PieceBytes> pieces,
              const Ranks& ranks) {
  Saver saver(storage, root, meta, {pieces.begin(), pieces.end()}, ranks);
  const bool first = ranks.rank == 0;
  const auto phase = [&](const std::function<void()>& work) {
    together(ranks, work, [&] { saver.discard(); });
  };
  phase([&] {
    if (first) saver.prepare();
  });
  phase([&] { saver.write_shard(); });
  phase([&] {
    if (first) saver.publish();
  });
  return saver.folder();
}

fs::path save(const fs::path& root,
              const Meta& meta,
              std::span<const PieceBytes> pieces,
              const Ranks& ranks) {
  return save(real_storage(), root, meta, pieces, ranks);
}

}  // namespace tessera::checkpoint
