/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Metadata in front of packets injected by inject.rs: "plaitinj". */
#ifndef PLAIT_INJECTED_H
#define PLAIT_INJECTED_H

#define PLAIT_INJECTED 0x706c616974696e6aull

#endif
