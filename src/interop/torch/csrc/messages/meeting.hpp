#pragma once
#include <functional>
#include <string>

#include "stretto/launch.hpp"
#include "torch_version.hpp"

// Ranks that share a c10d store form a job of Stretto: one rank listens, and writes its address to the store, with the
// secret that the other ranks need.
namespace stretto_torch {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Returns the address of this host on the network that leads to the store's host.
std::string own_address(const StorePtr& store);

void publish_meeting(const StorePtr& store, const std::string& key, const stretto::MeetingPoint& point);
stretto::MeetingPoint read_meeting(const StorePtr& store, const std::string& key);

// Blocks until the store has the key, and returns true. Returns false as soon as goes_on() returns false; passes on its
// exceptions, and those of signal handlers. It polls, because a thread that blocks inside a store keeps this process's other
// threads out of it.
bool await_key(const StorePtr& store, const std::string& key, const std::function<bool()>& goes_on);

// Collective over all ranks that have this store. Returns the communicator of all of them.
stretto::Communicator meet(const StorePtr& store, int rank, int size, Milliseconds timeout);

}  // namespace stretto_torch
