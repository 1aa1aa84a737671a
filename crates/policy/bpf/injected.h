/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* What stands before a packet that inject.rs made up for this host: "plaitinj". */
#ifndef PLAIT_INJECTED_H
#define PLAIT_INJECTED_H

#define PLAIT_INJECTED 0x706c616974696e6aull

#endif
