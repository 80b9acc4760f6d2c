#pragma once
#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

#include "core/lazy_library.hpp"

// UCX, loaded when the first link to another host is made. libucp brings libucs, whose functions are found in it, too. The
// functions that are called are listed here: programs do not link with one that is not.
namespace stretto {

inline constinit LazyLibrary ucx_library{"libucp.so.0", "Ranks on several hosts"};
STRETTO_LAZY_FUNCTION(ucx_library, ucp_cleanup);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_config_modify);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_config_read);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_config_release);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_context_print_info);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_ep_close_nbx);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_ep_create);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_get_version);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_init_version);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_request_cancel);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_request_check_status);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_request_free);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_tag_recv_nbx);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_tag_recv_request_test);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_tag_send_nbx);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_worker_arm);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_worker_create);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_worker_destroy);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_worker_get_address);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_worker_get_efd);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_worker_progress);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_worker_release_address);
STRETTO_LAZY_FUNCTION(ucx_library, ucp_worker_signal);
STRETTO_LAZY_FUNCTION(ucx_library, ucs_debug_disable_signal);
STRETTO_LAZY_FUNCTION(ucx_library, ucs_global_opts_set_value);
STRETTO_LAZY_FUNCTION(ucx_library, ucs_status_string);

// Comes before every other call of UCX: loads it, and leaves the program its signals (ucx_signals.cpp).
void load_ucx();

}  // namespace stretto
