#pragma once
#include <map>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"

namespace stretto {

// A flag, a setting, the digest of a file: something that must be the same on all ranks, as text.
struct NamedValue {
  std::string name;
  std::string value;
};

// Collective over all members. If a value differs between them, or some have no value of a name, the member of rank 0 throws
// Error(invalid_argument), and all others throw Error(peer_gave_up), so that a job reports it once. The sentence has the
// names, the values and the members' ranks: "--lr is '0.001' on ranks 0 to 2, '0.01' on rank 3; ...". The communicator stays
// usable. Cost: 16 bytes from every member to every other; all values only if they differ.
STRETTO_API void require_same(const Communicator& ranks, const std::vector<NamedValue>& values);

// Makes `text`, or a table of texts, that of the member of rank 0. Collective over all members. tag: as in OperationOptions.
// Cost: two small broadcasts for each text.
STRETTO_API void broadcast_text(const Communicator& ranks, std::string& text, const char* tag);
STRETTO_API void broadcast_texts(const Communicator& ranks, std::map<std::string, std::string>& texts, const char* tag);

}  // namespace stretto
