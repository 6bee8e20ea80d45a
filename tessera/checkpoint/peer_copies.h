// SPDX-License-Identifier: Apache-2.0
// Copies of the training state in the memory of hosts: each rank writes what it would write into a
// checkpoint to the copy servers of its own host and of the next one (hosts/copy_server.h), so
// that the state survives the loss of a host. See
// docs/decisions/0045-copies-in-the-memory-of-peers.md.
#pragma once

#include <memory>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/saver.h"
#include "tessera/hosts/copy_client.h"
#include "tessera/hosts/host_part.h"

namespace tessera::checkpoint {

/// A rank's part of a copy.
struct CopyTarget {
  std::vector<hosts::CopyPlace> places;  ///< one or two different servers
  hosts::Secret secret;
  hosts::CopySet set;
  hosts::CopySet keep;  ///< the last complete set
};

/// Returns the writer of one rank's part of a copy, for a BackgroundSave: the shard and its
/// manifest, with rank 0 also the meta. The copy is complete when all ranks have finished
/// write_shard(); the phases after it do nothing. Throws Error{Io} where a disk would fail.
std::unique_ptr<Saver> copy_saver(
    CopyTarget target, Meta meta, std::vector<PieceBytes> pieces, int rank, int num_ranks);

/// Opens the set `part.from` that the servers hold together. Every byte that is read is verified.
/// The object may be used in a process that is forked afterwards, which makes connections of its
/// own; no connection is left open. Throws Error{Comm} if a server cannot be reached, and
/// Error{Format} for damage and for a set that is not complete.
Checkpoint open_copies(const hosts::CopyPart& part, const hosts::Secret& secret);

}  // namespace tessera::checkpoint
